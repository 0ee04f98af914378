//! How the page looks, light and dark.

/// Lines have Okabe and Ito's colours (2008), which people tell apart whatever colours they see, made darker on light
/// and lighter on dark where they would be hard to see. Parts of a whole have ten steps of viridis.
pub(super) const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--grid:#e3e6ea;--box:#f6f8fa;--rest:#b6bcc4;
--c0:#0072b2;--c1:#d55e00;--c2:#008a66;--c3:#b5548b;--c4:#9a6b00;--c5:#2a93d1;--c6:#1b1f24;--c7:#7b4fb5}
@media(prefers-color-scheme:dark){:root{--paper:#12161b;--ink:#e6e9ed;--soft:#9aa4af;--grid:#2a313a;--box:#1b2128;
--rest:#59626d;--c0:#4aa8e0;--c1:#ff8b3d;--c2:#2cc79b;--c3:#e59cc4;--c4:#f0b429;--c5:#8fd3ff;--c6:#e6e9ed;--c7:#b99cf0}}
body{margin:0 auto;max-width:64rem;padding:1.5rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .3rem}
h3{font-size:.95rem;margin:1rem 0 .2rem;font-weight:600}
p,ul{margin:.3rem 0;max-width:46rem}.note,li{color:var(--soft)}
svg{width:100%;height:auto;display:block;margin:.4rem 0;font:12px system-ui,sans-serif}
.grid{stroke:var(--grid)}.axis{stroke:var(--soft)}.tick{fill:var(--soft)}.name{fill:var(--soft)}.label{fill:var(--ink)}
.lead{fill:none;stroke:var(--grid)}
.l{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}
.m{stroke-width:1.6}.m.hollow{fill:var(--paper)}
.line:hover .l{stroke-width:4}
.c0{stroke:var(--c0);fill:var(--c0)}.c1{stroke:var(--c1);fill:var(--c1)}.c2{stroke:var(--c2);fill:var(--c2)}
.c3{stroke:var(--c3);fill:var(--c3)}.c4{stroke:var(--c4);fill:var(--c4)}.c5{stroke:var(--c5);fill:var(--c5)}
.c6{stroke:var(--c6);fill:var(--c6)}.c7{stroke:var(--c7);fill:var(--c7)}
.l.c0,.l.c1,.l.c2,.l.c3,.l.c4,.l.c5,.l.c6,.l.c7{fill:none}
.m.hollow.c0,.m.hollow.c1,.m.hollow.c2,.m.hollow.c3,.m.hollow.c4,.m.hollow.c5,.m.hollow.c6,.m.hollow.c7{fill:var(--paper)}
.bar{fill:var(--c0)}.bar:hover{fill:var(--c1)}
.d0{fill:#440154}.d1{fill:#482878}.d2{fill:#3e4989}.d3{fill:#31688e}.d4{fill:#26828e}.d5{fill:#1f9e89}.d6{fill:#35b779}
.d7{fill:#6ece58}.d8{fill:#b5de2b}.d9{fill:#fde725}.rest{fill:var(--rest)}
.key{display:flex;flex-wrap:wrap;gap:.2rem .8rem;color:var(--soft);font-size:.85rem}
.key span{display:inline-flex;align-items:center;gap:.3rem}.key svg{width:14px;height:14px;margin:0;flex:none}
.switch>label{margin-right:1rem;color:var(--soft);white-space:nowrap}.view{display:none}
.switch>input:nth-of-type(1):checked~.view1,.switch>input:nth-of-type(2):checked~.view2,
.switch>input:nth-of-type(3):checked~.view3{display:block}
.wide{overflow-x:auto}.wide>svg{min-width:38rem}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th.word,td.word{text-align:left}tr.control td{color:var(--soft)}th{background:var(--box)}
details>summary{cursor:pointer;margin:.6rem 0;color:var(--soft)}
.narrow{display:none}@media(max-width:48rem){.narrow{display:flex}}
@media print{.view{display:block}.switch>input,.switch>label{display:none}}
";
