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
