//! The limits of an emulated GPU, each with its reason. Whoever exceeds one is refused and nothing changes.

/// Contexts that one GPU serves at a time. MPS from Volta on allows 48 client contexts per device (NVIDIA MPS
/// documentation, "Limitations"; 60 from CUDA 13.1: the older figure is the safer promise).
pub const MAX_CLIENTS: usize = 48;

/// Kernel groups in one submission. A captured graph of a policy has some hundreds of distinct kernels; 2,048 groups
/// of 24 bytes stay below [`MAX_MESSAGE_BYTES`].
pub const MAX_GROUPS: usize = 2_048;

/// Submissions of one client that may wait or run at a time. A CUDA stream blocks its submitter after about a
/// thousand launches; a submission here is a whole graph, so 64 is deep, and it bounds what a client can make the
/// device remember (64 × 48 KiB).
pub const MAX_QUEUED: usize = 64;

/// Kernels in one group. It keeps `repeat × time` far from the end of 64-bit nanoseconds.
pub const MAX_REPEAT: u32 = 1_000_000;

/// FLOPs or bytes of one kernel: about 17 minutes of an H100's peak. Larger is a mistake of units.
pub const MAX_KERNEL_WORK: u64 = 1_000_000_000_000_000_000;

/// Blocks of one kernel: CUDA's own limit of a grid's x dimension (CUDA C++ Programming Guide, compute capabilities).
pub const MAX_WIDTH_BLOCKS: u32 = i32::MAX as u32;

/// Bytes of one message, either way. It holds the largest submission and the fullest client list, and is well below
/// the kernel's default socket buffer (208 KiB), so that a whole message always fits.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Bytes of a role's name: enough for "job/stage/index", little enough for a full client list in one message.
pub const MAX_ROLE_BYTES: usize = 64;

/// Bytes of a GPU's name in a specification.
pub const MAX_NAME_BYTES: usize = 64;

/// Connections to one GPU: its contexts, as many that were ended and have not hung up yet, and administrators.
pub const MAX_CONNECTIONS: usize = 2 * MAX_CLIENTS + 32;

/// GPUs of one device process: the largest server sold has 16.
pub const MAX_GPUS: usize = 16;

/// Messages read from one connection before the others have their turn.
pub const READ_BUDGET: usize = 32;

/// How far before its arrival a submission may say that it was submitted. It covers the stalls of a busy machine
/// (4–10 ms were measured with two hogs a core), and bounds what a wrong clock can gain.
pub const MAX_BACKDATE_NS: u64 = 50_000_000;
