//! Bars: histograms, and what caches are made of.

use lossfeed_control::sim::Histogram;

use super::chart::{BOTTOM, LEFT, Scale, TOP, WIDTH, axes, escape, names_width, short, svg, told_apart};

/// Shades of the bars that are parts of a whole; `style` has one class for each.
pub(super) const SHADES: usize = 10;

/// A histogram; the borders stand under the bars.
pub(super) fn histogram(what: &str, x_name: &str, found: &Histogram) -> String {
    let Some(&most) = found.counts.iter().max().filter(|&&most| most > 0) else { return String::new() };
    let height = 250.0;
    let (left, right) = (LEFT, WIDTH - 20.0);
    let bars = found.counts.len();
    let x = Scale::new((0.0, bars as f64), (left, right), false);
    let y = Scale::new((0.0, most as f64 * 1.05), (height - BOTTOM, TOP), false);
    let every = bars.div_ceil(10);
    let borders: Vec<f64> = found.borders.iter().copied().step_by(every).collect();
    let borders = told_apart(&borders);
    // A tick for each border: the scale counts bars.
    let mut inside = axes(&Scale::new((0.0, 0.0), (left, right), false), &y, (x_name, "samples"), |_| String::new());
    for (k, text) in borders.iter().enumerate() {
        let at = x.place((k * every) as f64);
        inside += &format!(
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            height - BOTTOM + 17.0,
            escape(text)
        );
    }
    for (k, &count) in found.counts.iter().enumerate() {
        let (from, until, top) = (x.place(k as f64), x.place(k as f64 + 1.0), y.place(count as f64));
        let range = (found.borders.get(k).copied().unwrap_or(0.0), found.borders.get(k + 1).copied().unwrap_or(0.0));
        inside += &format!(
            "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{} to {}: {count} samples</title></rect>",
            from + 1.0,
            (until - from - 2.0).max(0.5),
            height - BOTTOM - top,
            short(range.0),
            short(range.1),
        );
    }
    svg(height, what, &inside)
}

/// One bar that is divided.
pub(super) struct Stack {
    pub(super) name: String,
    /// What each part is, its shade (`None`: not one of the order), and how many.
    pub(super) parts: Vec<(String, Option<usize>, u64)>,
}

/// Bars of equal length, divided as their wholes are.
pub(super) fn stacks(what: &str, bars: &[Stack]) -> String {
    let left = names_width(bars.iter().map(|bar| &bar.name[..]));
    let (right, row) = (WIDTH - 20.0, 24.0);
    let height = TOP + row * bars.len() as f64 + BOTTOM;
    let x = Scale::new((0.0, 100.0), (left, right), false);
    let mut inside = String::new();
    for tick in x.ticks() {
        let at = x.place(tick);
        inside += &format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/><text class=\"tick\" text-anchor=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            height - BOTTOM,
            height - BOTTOM + 17.0,
            short(tick)
        );
    }
    inside += &format!(
        "<text class=\"name\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">residents (%)</text>",
        (left + right) / 2.0,
        height - BOTTOM + 36.0
    );
    for (k, bar) in bars.iter().enumerate() {
        let top = TOP + row * k as f64 + 3.0;
        let name = escape(&bar.name);
        inside += &format!(
            "<text class=\"label\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            left - 8.0,
            top + 13.0
        );
        let whole: u64 = bar.parts.iter().map(|part| part.2).sum();
        if whole == 0 {
            inside += &format!("<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">empty</text>", left + 6.0, top + 13.0);
            continue;
        }
        let mut before = 0;
        for (part, shade, count) in bar.parts.iter().filter(|part| part.2 > 0) {
            let place = |count: u64| x.place(100.0 * count as f64 / whole as f64);
            let (from, until) = (place(before), place(before + count));
            before += count;
            let class = shade.map_or("rest".to_owned(), |shade| format!("d{}", shade.min(SHADES - 1)));
            inside += &format!(
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\"><title>{name}, {}: {count} residents, {:.1}%</title></rect>",
                until - from,
                escape(part),
                100.0 * *count as f64 / whole as f64
            );
        }
    }
    svg(height, what, &inside)
}
