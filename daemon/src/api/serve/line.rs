//! The line to a client: ends with one that stops in the middle of what it says, floods, or takes nothing that it is
//! told. hyper knows of none of these times.
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::frames::Frames;
use super::met;
use crate::api::limits::{FRAME_PATIENCE, LINE_PROGRESS, READER_PATIENCE};

/// A line that is written to again after so long was free meanwhile.
const FREE: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Line<I> {
    inner: I,
    /// None: it is not HTTP/2, whose own times hold then.
    frames: Option<Frames>,
    unfinished: Watch,
    unread: Watch,
    /// Bytes that went out since the line became full.
    progress: usize,
    /// When it last took something.
    took: Option<Instant>,
}

/// A time that runs from when it is first asked for.
#[derive(Debug, Default)]
struct Watch(Option<Pin<Box<Sleep>>>);

impl Watch {
    fn poll(&mut self, cx: &mut Context<'_>, patience: Duration) -> Poll<()> {
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        sleep.as_mut().poll(cx)
    }
    fn stop(&mut self) {
        self.0 = None;
    }
}

impl<I> Line<I> {
    /// HTTP/2, from its preface on.
    pub(super) fn http2(inner: I) -> Self {
        Self {
            frames: Some(Frames::new()),
            ..Self::plain(inner)
        }
    }

    /// Another tongue.
    pub(super) fn plain(inner: I) -> Self {
        Self {
            inner,
            frames: None,
            unfinished: Watch::default(),
            unread: Watch::default(),
            progress: 0,
            took: None,
        }
    }

    /// What became of a write: a full line has to move on.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Ok(n)) => {
                self.progress = self.progress.saturating_add(n);
                self.took = self.unread.0.is_some().then(Instant::now);
                Poll::Ready(Ok(n))
            }
            Poll::Pending => {
                if self.took.take().is_some_and(|at| at.elapsed() >= FREE) {
                    self.unread.stop();
                }
                if self.unread.0.is_none() {
                    self.progress = 0;
                }
                while self.unread.poll(cx, READER_PATIENCE).is_ready() {
                    if self.progress < LINE_PROGRESS {
                        return Poll::Ready(Err(ended("line", "its client does not read")));
                    }
                    self.progress = 0;
                    self.unread.stop();
                }
                Poll::Pending
            }
            error => error,
        }
    }
}

fn ended(limit: &'static str, why: &'static str) -> io::Error {
    met(limit);
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<I: AsyncRead + Unpin> AsyncRead for Line<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut line.inner).poll_read(cx, buf);
        let Some(frames) = &mut line.frames else {
            return read;
        };
        if read.is_pending() {
            if !frames.waits_for_more() {
                return Poll::Pending;
            }
            ready!(line.unfinished.poll(cx, FRAME_PATIENCE));
            return Poll::Ready(Err(ended(
                "frame",
                "a frame or a block of headers does not end",
            )));
        }
        ready!(read)?;
        let new = buf.filled().get(before..).unwrap_or_default();
        if let Err(flood) = frames.came(new, Instant::now()) {
            buf.set_filled(before);
            met("flood");
            return Poll::Ready(Err(io::Error::other(flood)));
        }
        if !frames.waits_for_more() {
            line.unfinished.stop();
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Line<I> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        let wrote = Pin::new(&mut line.inner).poll_write(cx, buf);
        line.wrote(cx, wrote)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let line = self.get_mut();
        let wrote = Pin::new(&mut line.inner).poll_write_vectored(cx, bufs);
        line.wrote(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::{Instant, sleep};

    use super::super::frames::PREFACE;
    use super::*;

    fn line(room: usize) -> (DuplexStream, Line<DuplexStream>) {
        let (client, server) = tokio::io::duplex(room);
        (client, Line::http2(server))
    }

    /// When, and why, the line ends for who reads from it.
    async fn end(line: &mut Line<DuplexStream>) -> (Duration, String) {
        let start = Instant::now();
        let mut all = Vec::new();
        let error = line.read_to_end(&mut all).await.unwrap_err();
        (start.elapsed(), error.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_has_to_end() {
        let (mut client, mut line) = line(1 << 16);
        client.write_all(&PREFACE).await.unwrap();
        client
            .write_all(&[0, 0, 9, 1, 4, 0, 0, 0, 1])
            .await
            .unwrap();
        // A byte now and again does not help.
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(2)).await;
                let _ = client.write_all(b"x").await;
            }
        });
        let (after, why) = end(&mut line).await;
        assert_eq!(after, FRAME_PATIENCE);
        assert!(why.contains("does not end"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_between_two_frames_is_none_of_its_business() {
        let (mut client, mut line) = line(1 << 16);
        client.write_all(&PREFACE).await.unwrap();
        let mut buf = [0; 64];
        let read = async { while line.read(&mut buf).await.unwrap() > 0 {} };
        let hour = Duration::from_secs(3_600);
        assert!(tokio::time::timeout(hour, read).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_ends_the_line() {
        let (mut client, mut line) = line(1 << 20);
        client.write_all(&PREFACE).await.unwrap();
        client
            .write_all(&[0, 0, 0, 0, 0, 0, 0, 0, 1].repeat(10_000))
            .await
            .unwrap();
        let (_, why) = end(&mut line).await;
        assert!(why.contains("honest"), "{why}");
    }

    /// How long a client that reads so much each second is written to, for a minute at most.
    async fn writes_on(a_second: usize) -> Duration {
        let (mut client, mut line) = line(64 << 10);
        let reader = tokio::spawn(async move {
            let mut buf = vec![0; a_second.max(1)];
            loop {
                sleep(Duration::from_secs(1)).await;
                if a_second > 0 {
                    client.read_exact(&mut buf).await.unwrap();
                }
            }
        });
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        let write = async { while line.write_all(&[7; 16 << 10]).await.is_ok() {} };
        let _ = tokio::time::timeout(minute, write).await;
        reader.abort();
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_not_written_to_for_ever() {
        assert_eq!(writes_on(0).await, READER_PATIENCE, "nothing");
        let little = LINE_PROGRESS / 2 / READER_PATIENCE.as_secs() as usize;
        assert!(writes_on(little).await < 3 * READER_PATIENCE, "a little");
        let enough = 2 * LINE_PROGRESS / READER_PATIENCE.as_secs() as usize;
        assert_eq!(writes_on(enough).await, Duration::from_secs(60), "slowly");
    }
}
