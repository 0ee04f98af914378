//! The committed PTX belongs to the committed sources and is what old drivers can load.

use lossfeed_kernels::ptx;
use sha2::{Digest, Sha256};

#[test]
fn the_prebuilt_ptx_was_built_from_these_sources() {
    let digest: String = Sha256::digest(ptx::sources()).iter().map(|b| format!("{b:02x}")).collect();
    let remedy = "kernels/cuda changed: run `python3 kernels/build_ptx.py` and commit kernels/prebuilt";
    assert_eq!(ptx::SOURCE_SHA256, digest, "{remedy}");
    assert!(ptx::module().lines().next().unwrap().ends_with(&digest), "{remedy}");
}

#[test]
fn the_prebuilt_ptx_is_isa_8_0_for_compute_75() {
    let has = |line: &str| ptx::module().lines().any(|l| l.trim() == line);
    assert!(has(".version 8.0") && has(".target sm_75") && has(".address_size 64"));
}

#[test]
fn every_launch_names_a_kernel_of_the_module() {
    let entries: Vec<&str> =
        ptx::module().lines().filter_map(|l| l.trim().strip_prefix(".visible .entry ")?.strip_suffix('(')).collect();
    for kernel in ptx::KERNELS {
        assert!(entries.contains(&kernel), "{kernel} is not in the PTX");
    }
    assert_eq!(entries.len(), ptx::KERNELS.len());
}

#[test]
fn every_kernel_that_reads_logits_reads_128_bits_at_once_and_the_backward_writes_them() {
    let pieces: Vec<&str> = ptx::module().split(".visible .entry ").skip(1).collect();
    for piece in pieces {
        let name = piece.split('(').next().unwrap();
        let backward = name.contains("backward");
        if backward {
            assert!(piece.contains("ld.global.cs.v4.u32"), "{name} has no 128-bit loads");
            let wide =
                ["v4.u32", "v4.f32", "v2.u64", "v2.f64"].iter().any(|w| piece.contains(&format!("st.global.cs.{w}")));
            assert!(wide, "{name} has no streaming 128-bit stores");
        } else if ["_score_", "_smooth_", "_probability_"].iter().any(|part| name.contains(part)) {
            assert!(piece.contains("ld.global.nc.v4.u32"), "{name} has no 128-bit loads");
        }
    }
}
