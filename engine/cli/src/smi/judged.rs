//! The verdict on each job, in its engines. Pure.

use lossfeed_stats::verdict::{self, Measured, Verdict, Word};

use super::snapshot::Engine;

/// Seconds after which a live view starts a new window.
const WINDOW_S: f64 = 30.0;

/// Earlier readings of the engines, so that a live view judges the last minute instead of the whole run.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Taken 30 to 60 s ago, or at the start.
    before: Vec<Engine>,
    /// The next `before`, and when it was taken.
    younger: Vec<Engine>,
    at_s: f64,
}

impl Window {
    /// Judges a snapshot taken at `now_s` and keeps it for later.
    pub(super) fn judge(&mut self, engines: &mut [Engine], now_s: f64) {
        judge(engines, &self.before);
        if self.younger.is_empty() || now_s - self.at_s >= WINDOW_S {
            self.before = std::mem::replace(&mut self.younger, engines.to_vec());
            self.at_s = now_s;
        }
    }
}

/// Judges every living job since its engines' readings in `before`, or since its start where those tell too little.
pub(super) fn judge(engines: &mut [Engine], before: &[Engine]) {
    for k in 0..engines.len() {
        let of_job = |m: &usize| engines[*m].alive && engines[*m].job_key() == engines[k].job_key();
        let members: Vec<usize> = (0..engines.len()).filter(of_job).collect();
        if members.first() != Some(&k) {
            continue;
        }
        let verdict = verdict_on(members.iter().map(|&m| &engines[m]), before);
        for m in members {
            let engine = &mut engines[m];
            engine.verdict = Some(verdict.word.name().to_owned());
            engine.cause = verdict.cause.map(|cause| cause.name().to_owned());
            engine.why = Some(verdict.why.clone());
            engine.next.clone_from(&verdict.next);
            engine.is_wrong = verdict.word.is_wrong();
            *engine = std::mem::take(engine).derive();
        }
    }
}

fn verdict_on<'a>(ranks: impl Iterator<Item = &'a Engine> + Clone, before: &[Engine]) -> Verdict {
    let measured = |engine: &Engine, since: Option<&Engine>| {
        let now = |name: &str| engine.counter(name);
        let measured = match since {
            Some(since) => Measured::of(&now, Some(&|name: &str| since.counter(name))),
            None => Measured::of(&now, None),
        };
        Measured { rank: engine.rank, ..measured }
    };
    let earlier = |engine: &Engine| before.iter().find(|b| b.page == engine.page);
    let lately: Option<Vec<Measured>> = ranks.clone().map(|e| Some(measured(e, Some(earlier(e)?)))).collect();
    let lately = lately.map(|lately| verdict::judge(&lately)).filter(|verdict| verdict.word != Word::Incomplete);
    lately.unwrap_or_else(|| verdict::judge(&ranks.map(|engine| measured(engine, None)).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;

    #[test]
    fn the_ranks_of_a_job_share_a_verdict_and_the_ended_have_none() {
        let mut engines = demo::snapshot(600.0).engines;
        for engine in &mut engines {
            (engine.verdict, engine.why, engine.next) = (None, None, None);
        }
        judge(&mut engines, &[]);
        let of = |job: &str| engines.iter().find(|e| e.job == job).unwrap();
        assert_eq!(of("resnet50-in1k").verdict.as_deref(), Some("input-bound"), "{:?}", of("resnet50-in1k").why);
        assert_eq!(of("resnet50-in1k").cause.as_deref(), Some("source"));
        assert!(of("resnet50-in1k").next.is_some() && of("resnet50-in1k").is_wrong);
        let ranks: Vec<&Engine> = engines.iter().filter(|e| e.job == "clip-b16").collect();
        assert!(ranks.len() == 4 && ranks.iter().all(|e| e.verdict == ranks[0].verdict));
        let ended: Vec<&Engine> = engines.iter().filter(|e| !e.alive).collect();
        assert!(!ended.is_empty() && ended.iter().all(|e| e.verdict.is_none()));
    }

    #[test]
    fn a_live_view_judges_the_last_minute_and_the_whole_run_where_that_is_too_short() {
        let at = |steps: u64, wait: u64| {
            let counters = [("batches_total", steps), ("wait_us_total", wait), ("wait_source_us_total", wait)];
            let counters = counters.into_iter().chain([("busy_us_total", steps * 10_000), ("samples_total", steps)]);
            let counters = counters.map(|(name, value)| (name.to_owned(), value)).collect();
            vec![Engine { alive: true, counters, ..Engine::default() }]
        };
        let mut window = Window::default();
        let mut judged = |mut engines: Vec<Engine>, now_s| {
            window.judge(&mut engines, now_s);
            engines[0].verdict.clone().unwrap()
        };
        assert_eq!(judged(at(1000, 0), 0.0), "ok", "nothing waits so far");
        assert_eq!(judged(at(1001, 50_000), 31.0), "ok", "one step in the window: the whole run counts");
        assert_eq!(judged(at(2000, 50_000_000), 62.0), "input-bound", "1000 steps since, and all of them waited");
    }
}
