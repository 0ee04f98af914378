//! The committed PTX belongs to the committed sources and is what old drivers can load.

use lossfeed_kernels::{Dtype, launch, ptx};
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
    for dtype in Dtype::ALL {
        for classes in [10, 5000] {
            assert!(ptx::KERNELS.contains(&launch::plan(64, classes, dtype).kernel));
        }
    }
    assert!(ptx::KERNELS.contains(&launch::rank(64).kernel));
}

#[test]
fn every_score_kernel_reads_128_bits_at_once() {
    let pieces: Vec<&str> = ptx::module().split(".visible .entry ").skip(1).collect();
    for piece in pieces.iter().filter(|p| p.starts_with("lossfeed_score")) {
        let name = piece.split('(').next().unwrap();
        assert!(piece.contains("ld.global.nc.v4.u32"), "{name} has no 128-bit loads");
    }
}
