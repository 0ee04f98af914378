//! The shapes that every kernel is held to, and why each is there.

use lossfeed_kernels::Dtype;

/// rows, classes, extra elements between rows, elements in front of the first row, multiprocessors.
pub(crate) type Shape = (usize, usize, usize, usize, u32);

/// One class: nothing to learn, a row shorter than any load. Two and three: rows shorter than a 128-bit load of 16-bit
/// types, and not aligned to it. 10 and 100: CIFAR, several rows a warp, and a length that is no multiple of a vector.
/// 33: one more than a warp. 1000, 1001: ImageNet, aligned rows and rows of which every other (16-bit: seven of eight)
/// is misaligned. 3001: the longest odd row that one warp takes alone, with full rounds. With one multiprocessor a warp
/// takes them, with 132 a block. 32,000, 50,257 and 128,256: language models, a block a row, odd and even; with 132
/// multiprocessors their rows are split, with one they are not. Strides (0: rows in one piece; 1, 3, 7: odd ones) and
/// offsets put rows at every alignment; row counts leave the last block part empty, or reach past one block.
pub(crate) const SHAPES: [Shape; 18] = [
    (70, 1, 0, 1, 132),
    (67, 2, 1, 1, 132),
    (33, 3, 0, 3, 132),
    (65, 10, 0, 0, 132),
    (9, 10, 3, 1, 132),
    (17, 33, 0, 1, 132),
    (19, 100, 7, 2, 132),
    (10, 1000, 0, 0, 132),
    (9, 1001, 0, 1, 132),
    (9, 1001, 0, 1, 1),
    (9, 3001, 1, 1, 132),
    (9, 3001, 1, 1, 1),
    (3, 32_000, 0, 0, 1),
    (3, 32_000, 1, 1, 132),
    (3, 50_257, 0, 1, 1),
    (2, 50_257, 3, 0, 132),
    (3, 128_256, 0, 0, 1),
    (2, 128_256, 7, 1, 132),
];

/// What a sanitized build can afford: one shape of every kind of launch.
pub(crate) const REDUCED: [Shape; 7] = [
    (5, 1, 0, 1, 132),
    (9, 3, 0, 3, 132),
    (9, 10, 3, 1, 132),
    (5, 33, 0, 1, 132),
    (3, 1001, 0, 1, 132),
    (2, 4_999, 1, 1, 1),
    (2, 9_001, 3, 1, 132),
];

/// Every shape with every type.
pub(crate) fn all(shapes: &'static [Shape]) -> impl Iterator<Item = (Dtype, Shape)> {
    Dtype::ALL.into_iter().flat_map(move |dtype| shapes.iter().map(move |&shape| (dtype, shape)))
}
