/* Makes every sync of a write-ahead log fail with EIO while a file is there. For LD_PRELOAD, in a test only.
   SQLite calls fsync or fdatasync, as it was built; both are taken. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(int fd) {
    const char *trigger = getenv("EVENKEEL_TEST_SYNC_FAILS");
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (!trigger || access(trigger, F_OK) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path);
    return length > 4 && memcmp(path + length - 4, "-wal", 4) == 0;
}

static int fail(void) {
    errno = EIO;
    return -1;
}

int fsync(int fd) {
    return fails(fd) ? fail() : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return fails(fd) ? fail() : (int)syscall(SYS_fdatasync, fd);
}
