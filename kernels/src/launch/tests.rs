//! Shapes cover every row once, and the layouts say what the kernels' say.

use super::arguments::*;
use super::*;
use crate::image::{
    Augment, AugmentKind, AugmentOptions, ColorJitter, ImageDtype, ImageOptions, ImageTransform, JitterOptions, Retouch,
};

const LENT: Lent = Lent { tickets: 0x1000, scratch: 0x10_0000, multiprocessors: 132 };

#[test]
fn every_row_gets_its_lanes_and_no_block_is_idle() {
    for dtype in Dtype::ALL {
        for classes in [1, 10, 16, 17, 64, 65, 100, 256, 257, 1000, 4096, 4097, 16_384, 16_385, 50_257, 128_256] {
            for rows in [1, 2, 31, 64, 65, 263, 264, 512, 513, 100_000] {
                for multiprocessors in [1, 46, 132, 10_000] {
                    let (launch, pieces, piece) =
                        score::shape(rows, classes, score::Wanted::Scores, dtype, multiprocessors);
                    covers(&launch, rows, classes, pieces, piece);
                    assert!(pieces == 1 || (rows * pieces as usize) <= PARTIALS_MAX && rows <= SPLIT_ROWS);
                    // Else the scratch has no room for the pieces' sums.
                    assert!(pieces == 1 || classes > BLOCK_CLASSES);
                    assert!(pieces as usize <= PIECES_MAX && launch.kernel.ends_with(dtype.name()));
                    assert!(
                        (launch.grid / pieces) as usize <= parts_max(rows, classes),
                        "{launch:?}: parts of the mean"
                    );
                    let (launch, pieces, piece) =
                        gradient::shape(rows, classes, dtype, family!("backward"), multiprocessors).unwrap();
                    covers(&launch, rows, classes, pieces, piece);
                }
            }
        }
    }
}

fn covers(launch: &Launch, rows: usize, classes: usize, pieces: u32, piece_classes: u32) {
    let (lanes, block_rows) = (launch.block.0 as usize, launch.block.1 as usize);
    let row_blocks = (launch.grid / pieces) as usize;
    assert_eq!(launch.grid % pieces, 0);
    assert!(row_blocks * block_rows >= rows, "{launch:?} misses rows of {rows}");
    assert!((row_blocks - 1) * block_rows < rows, "{launch:?} has an idle block for {rows}");
    assert!(lanes.is_power_of_two() && (lanes * block_rows).is_multiple_of(32) && lanes * block_rows <= 512);
    let (pieces, piece) = (pieces as usize, piece_classes as usize);
    assert!(pieces * piece >= classes && (pieces - 1) * piece < classes, "{pieces} pieces of {piece} for {classes}");
    assert!(pieces == 1 || piece.is_multiple_of(64));
}

#[test]
fn few_rows_fill_the_gpu_and_no_last_wave_is_nearly_empty() {
    // Small batches: every multiprocessor has a block, in the forward and in the backward.
    for (rows, classes) in [(256, 1000), (512, 1000), (1024, 1000), (64, 8192), (8, 128_256)] {
        let (launch, _, _) = score::shape(rows, classes, score::Wanted::Scores, Dtype::BF16, 132);
        assert!(launch.grid >= 128, "{rows} x {classes}: {launch:?}");
        let (launch, _, _) = gradient::shape(rows, classes, Dtype::BF16, family!("backward"), 132).unwrap();
        assert!(launch.grid >= 128, "{rows} x {classes}: {launch:?}");
    }
    // Long rows run in waves. How much longer the waves are than the rows would take if they divided evenly.
    for rows in (264..=1024).step_by(20) {
        let (launch, pieces, _) = score::shape(rows, 128_256, score::Wanted::Scores, Dtype::BF16, 132);
        let resident = 132 * 768 / launch.block.0;
        let waves = launch.grid.div_ceil(resident) as f64 / f64::from(pieces);
        let even = rows as f64 / f64::from(resident);
        assert!(waves / even.max(1.0) <= 1.25, "{rows} rows: {waves} waves for {even}");
    }
}

#[test]
fn a_forward_measures_what_is_asked_for_and_no_more() {
    let of = |dtype, batch: Score| score(dtype, &Score { rows: 8, classes: 10, ..batch }, &LENT)[0].launch.kernel;
    let smooth = Score { label_smoothing: 0.1, ..Score::default() };
    for (batch, kernels) in [
        (Score::default(), ["lossfeed_loss_bf16", "lossfeed_score_f64"]),
        (
            Score { max: 8, term: 8, home: Home { mail: 8, ..Home::default() }, ..Score::default() },
            ["lossfeed_loss_bf16", "lossfeed_score_f64"],
        ),
        (Score { grad_norm: 8, ..Score::default() }, ["lossfeed_score_bf16", "lossfeed_score_f64"]),
        (Score { entropy: 8, ..smooth }, ["lossfeed_score_bf16", "lossfeed_score_f64"]),
        (Score { term: 8, ..smooth }, ["lossfeed_smooth_bf16", "lossfeed_smooth_f64"]),
    ] {
        assert_eq!([Dtype::BF16, Dtype::F64].map(|dtype| of(dtype, batch)), kernels, "{batch:?}");
    }
}

#[test]
fn long_rows_have_blocks_of_256_threads_whose_last_wave_is_short() {
    for (classes, dtype, threads) in [(32_000, Dtype::BF16, 256), (32_000, Dtype::F32, 256), (30_000, Dtype::BF16, 128)]
    {
        let (launch, pieces, _) = score::shape(4096, classes, score::Wanted::Loss, dtype, 132);
        assert_eq!((launch.block, pieces), ((threads, 1), 1), "{classes} of {dtype:?}");
    }
}

#[test]
fn no_rows_is_no_launch() {
    assert!(score(Dtype::F32, &Score { classes: 10, ..Score::default() }, &LENT).is_empty());
    assert!(backward(Dtype::F32, &Gradient { classes: 10, ..Gradient::default() }, 132).is_none());
    assert!(sequences(false, &Sequences::default(), &LENT).is_empty());
    assert!(ranks(0, 8, 0, 0, &Home { count: 8, ..Home::default() }, &LENT).is_empty());
}

#[test]
fn ranks_are_launched_only_where_somebody_asks_and_the_score_launch_cannot() {
    let steps = |rows, home| score(Dtype::F32, &Score { rows, classes: 10, home, ..Score::default() }, &LENT).len();
    let wanted = Home { count: 8, ..Home::default() };
    assert_eq!([512, 513, 2048].map(|rows| steps(rows, wanted)), [1, 2, 2]);
    assert_eq!([2049, 16_384, 65_536, 65_537].map(|rows| steps(rows, wanted)), [3, 3, 3, 10]);
    assert_eq!([1, 513, 16_384, 65_537].map(|rows| steps(rows, Home::default())), [1; 4]);
    let mean = |rows| {
        let reduction = Reduction { out: 8, mean: true, ..Reduction::default() };
        score(Dtype::F32, &Score { rows, classes: 10, reduction, ..Score::default() }, &LENT).len()
    };
    assert_eq!([1, 513, 16_384, 1 << 20].map(mean), [1; 4], "the mean is made by the launch that scores");
}

#[test]
fn parts_of_the_scratch_do_not_overlap_and_fit() {
    for rows in [1, 513, 1024, 2048, 2049, 16_384, 16_385, 65_537, 1 << 20] {
        for classes in [10, 128_256] {
            let s = Scratch::new(0, rows, classes);
            let parts = [s.tickets, s.keys, s.counts, s.sort[0], s.sort[1], s.sort[2], s.partials, s.parts, s.end];
            assert!(parts.windows(2).all(|w| w[0] <= w[1]) && parts.iter().all(|p| p.is_multiple_of(256)));
            assert!(s.keys >= TICKET_BYTES as u64 && scratch_tickets(256) == 256);
            assert!(s.counts - s.keys >= 4 * rows as u64 && s.sort[0] - s.counts >= 4 * rows as u64);
            assert_eq!(scratch_bytes(rows, classes) as u64, s.end);
        }
    }
}

#[test]
fn arguments_have_the_sizes_the_kernels_declare() {
    let sizes = [
        (size_of::<Finish>(), 96),
        (size_of::<ScoreArguments>(), 96 + 48 + 20 * 8 + 16),
        (size_of::<GradientArguments>(), 15 * 8 + 32),
        (size_of::<ProbabilityArguments>(), 96 + 13 * 8 + 8),
        (size_of::<ProbabilityGradientArguments>(), 12 * 8 + 24),
        (size_of::<SequenceArguments>(), 96 + 11 * 8 + 16),
        (size_of::<RadixArguments>(), 96 + 24 + 8),
        (size_of::<TileArguments>(), 96 + 16),
        (size_of::<MailArguments>(), 8),
        (size_of::<ImageArguments>(), 5 * 8 + 32 * 4 + 12 * 4),
        (size_of::<GatherArguments>(), 16 + 480 * 8),
        (size_of::<MixArguments>(), 8 + 14 * 4),
        (size_of::<EraseArguments>(), 2 * 8 + 6 * 4 + 320 * 12),
        (size_of::<RetouchArguments>(), 19 * 8 + 18 * 4),
    ];
    assert!(sizes.iter().all(|(actual, declared)| actual == declared), "{sizes:?}");
    assert_eq!((size_of::<mail::State>(), size_of::<mail::SlotHead>()), (40, 32));
    assert_eq!((size_of::<mail::Words>(), size_of::<mail::BadRows>()), (16, 24));
    let ptx = crate::ptx::module();
    for (kernel, (size, _)) in [
        ("lossfeed_rank_sort", sizes[0]),
        ("lossfeed_score_f32", sizes[1]),
        ("lossfeed_backward_f32", sizes[2]),
        ("lossfeed_probability_f32", sizes[3]),
        ("lossfeed_probability_backward_f32", sizes[4]),
        ("lossfeed_sequence_f32", sizes[5]),
        ("lossfeed_radix_count", sizes[6]),
        ("lossfeed_rank_tiles", sizes[7]),
        ("lossfeed_mail_close", sizes[8]),
        ("lossfeed_image_f32", sizes[9]),
        ("lossfeed_gather_b8", sizes[10]),
        ("lossfeed_mix_f32", sizes[11]),
        ("lossfeed_erase_b8", sizes[12]),
        ("lossfeed_retouch_c3", sizes[13]),
    ] {
        assert!(ptx.contains(&format!("{kernel}_param_0[{size}]")), "{kernel} takes no {size} bytes");
    }
}

#[test]
fn every_sample_of_a_batch_is_made_and_what_no_launch_can_make_is_refused() {
    let options = ImageOptions {
        dtype: ImageDtype::F16,
        channels_first: true,
        crop: None,
        padding: 4,
        random_crop: true,
        flip: 0.5,
        mean: &[],
        std: &[],
    };
    let transform = |side| ImageTransform::new([side, side, 3], &options).unwrap();
    let batch = |rows| Images { rows, key: 1, source: 64, ids: 128, out: 256 };
    assert!(images(&transform(32), &batch(0)).unwrap().is_none());
    for (side, rows) in [(32, 256), (5, 7), (1, 1), (224, 300)] {
        let launch = images(&transform(side), &batch(rows)).unwrap().unwrap().launch;
        let threads = launch.grid as usize * launch.block.0 as usize;
        let vectors = rows * (3 * side * side).div_ceil(8);
        assert!(threads >= vectors && threads < vectors + 256, "{threads} threads for {vectors}");
    }
    assert!(images(&transform(1 << 16), &batch(1)).is_err(), "more elements than an int counts");
    assert!(images(&transform(10_000), &batch(1 << 30)).is_err());
}

/// With a cut to `out`, augmented.
fn retouching(source: [usize; 3], out: [usize; 2]) -> Retouch {
    let options = ImageOptions {
        dtype: ImageDtype::U8,
        channels_first: false,
        crop: Some(out),
        padding: 4,
        random_crop: true,
        flip: 0.5,
        mean: &[],
        std: &[],
    };
    let cut = ImageTransform::new(source, &options).unwrap();
    let options = AugmentOptions { kind: AugmentKind::Trivial, bins: 31, fill: &[] };
    let augment = Augment::new(cut.shape(), &options).unwrap();
    Retouch::new(source, None, Some(cut), Some(augment)).unwrap()
}

#[test]
fn parts_of_the_room_for_retouching_do_not_overlap() {
    for (source, out) in [([32, 32, 3], [32, 32]), ([7, 9, 3], [5, 5]), ([7, 9, 3], [9, 11]), ([1, 1, 1], [9, 9])] {
        let retouch = retouching(source, out);
        let (from, to) = (retouch.source_bytes(), retouch.out_bytes());
        assert_eq!((from, to), (source.iter().product(), out[0] * out[1] * source[2]));
        for rows in [1, 3, 256] {
            let room = retouch.room(rows);
            assert!(room.out >= rows * from && room.out.is_multiple_of(256) && room.bytes >= room.out + rows * to);
            assert!(room.spare_row >= to, "a row must have room");
            let end = room.spare + rows * room.spare_row;
            let own = room.spare == 0 && end <= room.out;
            assert!(own || room.spare >= room.out + rows * to && end <= room.bytes, "{room:?}");
        }
    }
    let grey = JitterOptions { grayscale: 1.0, ..JitterOptions::default() };
    let colors = Retouch::new([5, 5, 3], ColorJitter::new(grey).unwrap(), None, None).unwrap();
    assert_eq!((colors.room(4).out, colors.room(4).bytes), (0, 300), "colours change where they lie");
    assert!(Retouch::new([5, 5, 3], None, None, None).is_none());
}

#[test]
fn every_image_is_retouched_by_a_block_and_what_no_launch_can_do_is_refused() {
    let batch = |rows| Retouching { rows, key: 1, ids: 128, pixels: 0x1_0000 };
    assert!(retouch(&retouching([32, 32, 3], [32, 32]), &batch(0)).unwrap().is_none());
    for (side, threads) in [(1, 64), (16, 64), (20, 128), (224, 256)] {
        let wanted = retouching([side, side, 3], [side, side]);
        let step = retouch(&wanted, &batch(300)).unwrap().unwrap();
        assert_eq!((step.launch.grid, step.launch.block), (300, (threads, 1)));
        assert_eq!(step.launch.kernel, "lossfeed_retouch_c3");
        let Arguments::Retouch(a) = &step.arguments else { panic!("{step:?}") };
        assert_eq!((a.out, a.spare), (batch(300).made(&wanted), a.pixels));
    }
    assert_eq!(
        retouch(&retouching([8, 8, 1], [8, 8]), &batch(1)).unwrap().unwrap().launch.kernel,
        "lossfeed_retouch_c1"
    );
    assert!(retouch(&retouching([30_000, 30_000, 3], [9, 9]), &batch(1)).is_err(), "more bytes than an int counts");
    assert!(retouch(&retouching([9, 9, 3], [9, 9]), &batch(1 << 31)).is_err());
    // The kernel's own number.
    let shared = format!("#define RETOUCH_SHARED_BYTES {}\n", super::retouch::SHARED_BYTES);
    assert!(crate::ptx::sources().contains(&shared), "{shared}");
}

#[test]
fn every_row_is_gathered_once_in_the_widest_words_that_fit() {
    let rows = |count: usize, apart: u64| (0..count as u64).map(|row| 0x1000 + row * apart).collect::<Vec<u64>>();
    for (from, row_bytes, out, kernel) in [
        (rows(256, 64), 3072, 0x100, "lossfeed_gather_b128"),
        (rows(3, 24), 48, 0x100, "lossfeed_gather_b32"),
        (rows(2, 64), 48, 0x104, "lossfeed_gather_b32"),
        (rows(2, 64), 27, 0x100, "lossfeed_gather_b8"),
        (rows(1, 0), 1, 0x101, "lossfeed_gather_b8"),
        (rows(1111, 160_000), 150_528, 0, "lossfeed_gather_b128"),
    ] {
        let steps = gather(&Gather { from: &from, row_bytes, out }, 132).unwrap();
        let mut seen = Vec::new();
        for step in &steps {
            let Arguments::Gather(a) = &step.arguments else { panic!("{step:?}") };
            assert_eq!((step.launch.kernel, step.launch.block), (kernel, (256, 1)));
            assert_eq!(a.out, out + (seen.len() * row_bytes) as u64, "rows follow each other");
            assert!((1..=16).contains(&step.launch.grid) && a.rows as usize <= GATHER_ROWS_MAX);
            seen.extend_from_slice(&a.from[..a.rows as usize]);
        }
        assert_eq!((seen, steps.len()), (from.clone(), from.len().div_ceil(GATHER_ROWS_MAX)));
    }
    assert!(gather(&Gather { from: &[], row_bytes: 64, out: 0 }, 132).unwrap().is_empty());
    assert_eq!(gather(&Gather { from: &[0], row_bytes: (1 << 31) + 1, out: 0 }, 132).unwrap_err(), (1 << 31) + 1);
    let large = gather(&Gather { from: &[0; 9], row_bytes: 1 << 33, out: 0 }, 132).unwrap();
    assert_eq!(large.len(), 3, "4 of 2^29 words are the most of a launch");
}

#[test]
fn parts_of_a_mail_slot_are_aligned_and_do_not_overlap() {
    for rows in [1, 7, 64, 1000] {
        let s = mail::Slot::new(rows);
        let parts = [(s.ids, 8), (s.loss, 4), (s.grad_norm, 4), (s.entropy, 4), (s.count, 4), (s.bytes, 0)];
        assert!(parts.windows(2).all(|w| w[0].0 + w[0].1 * rows <= w[1].0));
        assert!(parts.iter().all(|p| p.0.is_multiple_of(64)) && s.ids >= size_of::<mail::SlotHead>());
    }
}
