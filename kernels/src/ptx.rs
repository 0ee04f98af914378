//! The shipped kernels: machine code for the GPUs in use, PTX that every driver from 525 on compiles for any other, and
//! where they came from.
//!
//! `kernels/README.md` documents entry points and arguments, [`crate::launch`] the launch shapes.
//!
//! | machine code for | GPUs | why |
//! | --- | --- | --- |
//! | 8.0 | A100; and 8.6, 8.9: A10, A40, L4, L40, RTX 30 and 40 | all run 8.0's code; 8.6 and 8.9 would gain only arithmetic that these kernels, which wait for memory, do not lack |
//! | 9.0 | H100, H200, GH200 | |
//! | 10.0 | B200; and 10.3: B300 | |
//! | 12.0 | RTX 50, RTX PRO; and 12.1: GB10 | |
//!
//! PTX is left for 7.5 (T4, RTX 20: no conversions of pairs and no asynchronous copies, so it is the PTX's own code),
//! for modules on boards (8.7, 10.1, 11.0), whose machine code is not the desktop's, for GPUs that do not exist yet,
//! and for a driver that refuses the machine code. There the driver compiles for some seconds, once: it keeps the
//! result on disk.

use std::io;
use std::sync::LazyLock;

/// PTX ISA 8.0 for compute_75 and newer, one module with every entry point of [`KERNELS`]. Unpacked once a process;
/// empty, which no driver takes, if there is no memory for it.
pub fn module() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| zstd::decode_all(PTX).ok().and_then(|text| String::from_utf8(text).ok()).unwrap_or_default());
    &TEXT
}

static PTX: &[u8] = include_bytes!("../prebuilt/lossfeed.ptx.zst");

/// A compute capability: (major, minor).
pub type Capability = (u32, u32);

/// The kernels in a form that a driver loads (`cuModuleLoadData`), compressed.
pub struct Image {
    /// Its file in `kernels/prebuilt`, without `.zst`.
    pub name: &'static str,
    /// The GPUs it is machine code for, the oldest of them; `None`: PTX.
    pub machine_code: Option<Capability>,
    /// One zstd frame.
    packed: &'static [u8],
}

impl Image {
    /// What the driver is handed: machine code, or text with a zero at its end. Takes a few milliseconds.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn unpack(&self) -> io::Result<Vec<u8>> {
        let mut bytes = zstd::decode_all(self.packed)?;
        if self.machine_code.is_none() {
            bytes.push(0);
        }
        Ok(bytes)
    }

    /// Whether a GPU runs this. Machine code runs on the GPUs of its major version from its minor version on.
    fn runs_on(&self, (major, minor): Capability) -> bool {
        match self.machine_code {
            Some((of, least)) => of == major && least <= minor && !ON_BOARDS.contains(&(major, minor)),
            None => true,
        }
    }
}

/// GPUs that share a major version with others, and not its machine code.
const ON_BOARDS: [Capability; 2] = [(8, 7), (10, 1)];

macro_rules! machine_code {
    ($name:literal, $capability:expr) => {
        Image {
            name: $name,
            machine_code: Some($capability),
            packed: include_bytes!(concat!("../prebuilt/", $name, ".zst")),
        }
    };
}

/// Every image that is shipped; the PTX is the last.
pub static IMAGES: [Image; 5] = [
    machine_code!("sm_80.cubin", (8, 0)),
    machine_code!("sm_90.cubin", (9, 0)),
    machine_code!("sm_100.cubin", (10, 0)),
    machine_code!("sm_120.cubin", (12, 0)),
    Image { name: "lossfeed.ptx", machine_code: None, packed: PTX },
];

/// The images that a GPU may be given, the best first: its machine code if there is any, then the PTX.
pub fn images_for(gpu: Capability) -> impl Iterator<Item = &'static Image> {
    IMAGES.iter().filter(move |image| image.runs_on(gpu))
}

/// SHA-256 of [`sources`], in hexadecimal, as it was when [`IMAGES`] were built (each of them holds it too).
pub const SOURCE_SHA256: &str = include_str!("../prebuilt/lossfeed.sha256");

/// The CUDA C++ of the module as one translation unit: header-free, for NVRTC or any other compiler.
pub fn sources() -> &'static str {
    concat!(
        include_str!("../cuda/prelude.cu"),
        include_str!("../cuda/rank.cu"),
        include_str!("../cuda/mail.cu"),
        include_str!("../cuda/finish.cu"),
        include_str!("../cuda/mean.cu"),
        include_str!("../cuda/tiles.cu"),
        include_str!("../cuda/radix.cu"),
        include_str!("../cuda/sums.cu"),
        include_str!("../cuda/score.cu"),
        include_str!("../cuda/gradient.cu"),
        include_str!("../cuda/probability.cu"),
        include_str!("../cuda/sequence.cu"),
        include_str!("../cuda/image.cu"),
        include_str!("../cuda/color.cu"),
        include_str!("../cuda/retouch.cu"),
        include_str!("../cuda/mixing.cu"),
        include_str!("../cuda/gather.cu"),
    )
}

/// Every entry point: load them all when the module is loaded, so that none is first met in a training step.
pub const KERNELS: [&str; 48] = [
    "lossfeed_score_f16",
    "lossfeed_score_bf16",
    "lossfeed_score_f32",
    "lossfeed_score_f64",
    "lossfeed_loss_f16",
    "lossfeed_loss_bf16",
    "lossfeed_loss_f32",
    "lossfeed_smooth_f16",
    "lossfeed_smooth_bf16",
    "lossfeed_smooth_f32",
    "lossfeed_smooth_f64",
    "lossfeed_backward_f16",
    "lossfeed_backward_bf16",
    "lossfeed_backward_f32",
    "lossfeed_backward_f64",
    "lossfeed_probability_f16",
    "lossfeed_probability_bf16",
    "lossfeed_probability_f32",
    "lossfeed_probability_f64",
    "lossfeed_probability_backward_f16",
    "lossfeed_probability_backward_bf16",
    "lossfeed_probability_backward_f32",
    "lossfeed_probability_backward_f64",
    "lossfeed_sequence_f32",
    "lossfeed_sequence_f64",
    "lossfeed_rank_sort",
    "lossfeed_rank_tiles",
    "lossfeed_rank_search",
    "lossfeed_radix_count",
    "lossfeed_radix_scatter",
    "lossfeed_radix_search",
    "lossfeed_mail_close",
    "lossfeed_image_u8",
    "lossfeed_image_f16",
    "lossfeed_image_bf16",
    "lossfeed_image_f32",
    "lossfeed_retouch_c1",
    "lossfeed_retouch_c3",
    "lossfeed_mix_u8",
    "lossfeed_mix_f16",
    "lossfeed_mix_bf16",
    "lossfeed_mix_f32",
    "lossfeed_erase_b8",
    "lossfeed_erase_b16",
    "lossfeed_erase_b32",
    "lossfeed_gather_b128",
    "lossfeed_gather_b32",
    "lossfeed_gather_b8",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_is_given_its_machine_code_or_the_ptx() {
        let given = |gpu| images_for(gpu).map(|image| image.name).collect::<Vec<_>>();
        for (gpus, machine_code) in [
            (&[(8, 0), (8, 6), (8, 9)][..], Some("sm_80.cubin")),
            (&[(9, 0)], Some("sm_90.cubin")),
            (&[(10, 0), (10, 3)], Some("sm_100.cubin")),
            (&[(12, 0), (12, 1)], Some("sm_120.cubin")),
            // Turing, modules on boards, what is not known yet; and older ones, which the driver will refuse.
            (&[(7, 5), (8, 7), (10, 1), (11, 0), (13, 0), (99, 9), (7, 0), (0, 0)], None),
        ] {
            for &gpu in gpus {
                let expected: Vec<&str> = machine_code.into_iter().chain(["lossfeed.ptx"]).collect();
                assert_eq!(given(gpu), expected, "{gpu:?}");
            }
        }
    }

    #[test]
    fn an_image_is_what_a_driver_can_tell_the_form_of() {
        for image in &IMAGES {
            let bytes = image.unpack().unwrap();
            match image.machine_code {
                Some(_) => assert!(bytes.starts_with(b"\x7fELF"), "{}", image.name),
                None => assert_eq!(bytes.iter().position(|&byte| byte == 0), Some(bytes.len() - 1)),
            }
            // An ELF file's tables want to lie on boundaries.
            assert!(bytes.as_ptr().addr().is_multiple_of(8), "{}", image.name);
        }
    }
}
