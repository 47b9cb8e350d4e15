//! The digest of a request's body, by which the same `request_id` with another body is recognised.
//!
//! It is stored in the ledger and compared with requests that come after an update of the daemon, so it must
//! never change: FNV-1a with 64 bits (Fowler, Noll, Vo) over the protobuf encoding of the request, fields in
//! ascending order, without the fields that may differ between tries. A field that a later version adds is not
//! in the encoding while it has its default. Not a defence against forgers: a caller can only fool itself.
use evenkeel_core::id::BodyHash;
use evenkeel_proto::v1 as pb;
use prost::Message as _;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

fn fnv1a(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

/// Of a request for a lease. How long it waits is no part of what it asks for: a retry has less time left.
pub(super) fn acquire(request: &pb::AcquireLeaseRequest) -> BodyHash {
    let body = pb::AcquireLeaseRequest {
        request_id: String::new(),
        wait_ms: 0,
        ..request.clone()
    };
    BodyHash(fnv1a(fnv1a(OFFSET, b"acquire"), &body.encode_to_vec()))
}

/// Of the submission of a job.
pub(super) fn submit(spec: &pb::JobSpec) -> BodyHash {
    BodyHash(fnv1a(fnv1a(OFFSET, b"submit"), &spec.encode_to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_published_one() {
        // Test vectors of the FNV specification (draft-eastlake-fnv, appendix C).
        for (text, expect) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(fnv1a(OFFSET, text.as_bytes()), expect, "{text:?}");
        }
    }

    #[test]
    fn it_stays_what_ledgers_hold_and_minds_what_is_asked() {
        let request = pb::AcquireLeaseRequest {
            request_id: "0190b6a0-0000-7000-8000-000000000001".into(),
            cores: 4,
            gpus: vec![pb::GpuRequest {
                percent: 30,
                memory_bytes: 10 << 30,
                ..Default::default()
            }],
            wait_ms: 500,
            ..Default::default()
        };
        let digest = acquire(&request);
        assert_eq!(
            digest,
            BodyHash(STORED),
            "ledgers in the field hold this number"
        );
        let again = pb::AcquireLeaseRequest {
            request_id: "other".into(),
            wait_ms: 100,
            ..request.clone()
        };
        assert_eq!(acquire(&again), digest);
        let other = pb::AcquireLeaseRequest {
            cores: 5,
            ..request
        };
        assert_ne!(acquire(&other), digest);
    }

    const STORED: u64 = 0xc4e1_43d5_4cb2_2153;
}
