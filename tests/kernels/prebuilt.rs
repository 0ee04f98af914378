//! The committed images belong to the committed sources, and the PTX is what old drivers can load.

use std::collections::HashSet;

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
fn every_image_was_built_from_these_sources_and_is_the_one_that_was_built() {
    let remedy = "run `python3 kernels/build_ptx.py` and commit all of kernels/prebuilt";
    // As `sha256sum` writes it, of every image, unpacked.
    let listed = include_str!("../../kernels/prebuilt/images.sha256");
    let listed: Vec<(&str, &str)> = listed.lines().map(|line| line.split_once("  ").unwrap()).collect();
    assert_eq!(listed.len(), ptx::IMAGES.len(), "{remedy}");
    for image in &ptx::IMAGES {
        let unpacked = image.unpack().unwrap();
        let bytes = unpacked.strip_suffix(b"\0").filter(|_| image.machine_code.is_none()).unwrap_or(&unpacked);
        let digest: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert!(listed.contains(&(&digest, image.name)), "{}: {remedy}", image.name);
        let source = ptx::SOURCE_SHA256.as_bytes();
        assert!(bytes.windows(source.len()).any(|found| found == source), "{}: {remedy}", image.name);
    }
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
    for image in ptx::IMAGES.iter().filter(|image| image.machine_code.is_some()) {
        // A section of its own for each: the names of an ELF file's sections end with a zero.
        let bytes = image.unpack().unwrap();
        let sections: HashSet<&[u8]> =
            bytes.split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(b".text.")).collect();
        for kernel in ptx::KERNELS {
            assert!(sections.contains(kernel.as_bytes()), "{kernel} is not in {}", image.name);
        }
        assert_eq!(sections.len(), ptx::KERNELS.len(), "{}", image.name);
    }
}

/// Else a compiler for GPUs would round other bytes than the CPU does.
#[test]
fn retouching_fuses_no_multiplication_with_an_addition() {
    for kernel in ["lossfeed_retouch_c1", "lossfeed_retouch_c3"] {
        let (_, body) = ptx::module().split_once(&format!(".visible .entry {kernel}(")).unwrap();
        let body = body.split(".visible .entry ").next().unwrap();
        assert!(body.contains("mul.rn.f32") && !body.contains("fma."), "{kernel}");
        // One that is not told how to round may be fused later, by the assembler.
        let open = |line: &&str| ["mul.f32", "add.f32", "sub.f32"].iter().any(|name| line.contains(name));
        assert_eq!(body.lines().find(open), None, "{kernel}");
    }
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
