//! Which image a GPU is given, and what becomes of one that the driver refuses.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use lossfeed::device::cuda::{Cuda, CudaKernels};
use lossfeed::error::{ErrorKind, Result};

use crate::double::Double;
use crate::planted::{alone, is_alone};

const OUT_OF_MEMORY: i32 = 2;
const INVALID_IMAGE: i32 = 200;
const NO_BINARY_FOR_GPU: i32 = 209;
const NOT_FOUND: i32 = 500;

/// What was logged: the level and every field of each event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Fields<'a>(&'a mut String);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = self.0.lock().unwrap();
        write!(text, "{}", event.metadata().level()).unwrap();
        event.record(&mut Fields(&mut text));
        text.push('\n');
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Kernels are loaded once for a device: a process of its own, with more devices than there are cases.
#[test]
fn a_gpu_is_given_its_machine_code_and_ptx_where_there_is_none_or_it_is_refused() {
    let Some(double) = Double::untouched() else { return };
    if !is_alone() {
        drop(double);
        let (code, said) =
            alone("modules::a_gpu_is_given_its_machine_code_and_ptx_where_there_is_none_or_it_is_refused");
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    double.set("devices", 32);
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let mut devices = 0..32;
    let mut load = |capability: u64| -> Result<Arc<CudaKernels>> {
        double.set("capability", capability);
        Cuda::open(devices.next().unwrap()).unwrap().kernels()
    };

    let cases = [(80, "sm_80"), (86, "sm_80"), (89, "sm_80"), (90, "sm_90"), (100, "sm_100"), (103, "sm_100")];
    for (capability, expected) in cases.into_iter().chain([(120, "sm_120"), (121, "sm_120")]) {
        assert_eq!(load(capability).unwrap().image(), format!("{expected}.cubin"), "{capability}");
        assert_eq!(log.take(), "", "{capability}");
    }
    for capability in [75, 87, 101, 110, 130] {
        assert_eq!(load(capability).unwrap().image(), "lossfeed.ptx", "{capability}");
        let said = log.take();
        assert!(
            said.starts_with("INFO") && said.contains(&format!("{}.{}", capability / 10, capability % 10)),
            "{said}"
        );
    }

    // A driver that does not want the machine code, and one that has lost a kernel of it: said, and PTX instead.
    let modules = double.get("modules");
    for (number, (call, after, code)) in (1..).zip([
        ("cuModuleLoadDataEx", 0, NO_BINARY_FOR_GPU),
        ("cuModuleLoadDataEx", 0, INVALID_IMAGE),
        ("cuModuleGetFunction", 7, NOT_FOUND),
    ]) {
        double.fail(call, after, code);
        assert_eq!(load(90).unwrap().image(), "lossfeed.ptx", "{call} gives {code}");
        let said = log.take();
        let warned = said.lines().next().unwrap();
        assert!(warned.starts_with("WARN") && warned.contains("sm_90.cubin"), "{said}");
        assert!(warned.contains(&format!("CUDA_DOUBLE_{code}")), "the driver's reason: {said}");
        assert_eq!(double.get("modules"), modules + number, "what was refused half-way is unloaded");
    }

    // No other image would help: an error at once, and the same device can be tried again.
    let cuda = Cuda::open(31).unwrap();
    double.set("capability", 90);
    for call in ["cuModuleLoadDataEx", "cuModuleGetFunction"] {
        double.fail(call, 0, OUT_OF_MEMORY);
        let refused = cuda.kernels().expect_err(call);
        assert_eq!(refused.kind(), ErrorKind::Device);
        assert!(refused.to_string().contains("out of memory") && refused.to_string().contains("sm_90"), "{refused}");
        assert_eq!(log.take(), "", "{call}");
    }
    assert_eq!(cuda.kernels().unwrap().image(), "sm_90.cubin");

    // Nothing that is shipped runs there: every reason and the remedy.
    let refused = load(70).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Device);
    let said = refused.to_string();
    assert!(said.contains("7.0") && said.contains("lossfeed.ptx: CUDA_DOUBLE_209") && said.contains("7.5"), "{said}");
    double.is_clean();
}
