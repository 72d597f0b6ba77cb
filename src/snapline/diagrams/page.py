"""Frame of every page around pictures: one file that needs no network, in the reader's light or dark scheme.

The page's policy forbids the network, and scripts too unless one is given. The caller escapes all text.
"""

STYLE = """:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --quiet: #59636e; --edge: #d1d9e0;
 --panel: #f6f8fa; --mark: #54aeff33; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --quiet: #9198a1; --edge: #3d444d;
 --panel: #151b23; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 24px; font: 15px/1.55 system-ui, sans-serif; color: var(--ink);
 background: var(--paper); }
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 8px; padding-top: 12px; border-top: 1px solid var(--edge); }
h3 { font-size: 15px; margin: 0 0 4px; } h3 span, .quiet { color: var(--quiet); font-weight: 400; }
p { margin: 6px 0; overflow-wrap: anywhere; } ul { margin: 6px 0; padding-left: 22px; }
code, pre, kbd { font: 13px/1.5 ui-monospace, monospace; } code { overflow-wrap: anywhere; }
kbd { border: 1px solid var(--edge); border-radius: 4px; padding: 0 4px; }
pre { background: var(--panel); border: 1px solid var(--edge); border-radius: 6px; padding: 10px 12px; margin: 8px 0;
 overflow: auto; max-height: 480px; }
.picture { overflow-x: auto; border: 1px solid var(--edge); border-radius: 6px; } .picture svg { display: block; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; } caption { text-align: left; }
th, td { text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
.number { text-align: right; padding-right: 4px; font-variant-numeric: tabular-nums; white-space: nowrap; }
summary { cursor: pointer; margin: 8px 0; }
:focus-visible { outline: 2px solid #0969da; outline-offset: 2px; }
@media print { body { padding: 0; } .picture, pre { overflow: visible; max-height: none; } }
"""


def page(*, title: str, body: str, style: str = "", script: str = "") -> str:
    """Return the text of one HTML file.

    Args:
        title: title as markup, like `body`.
        body: content of the page.
        style: additional style rules.
        script: runs after the body; without it the page's policy forbids scripts.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'" + ("; script-src 'unsafe-inline'" if script else "")
    code = f"<script>\n{script}</script>\n" if script else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{STYLE}{style}</style>
</head>
<body>
{body}
{code}</body>
</html>
"""


def picture(svg: str, *, name: str = "space-time diagram", kind: str = "") -> str:
    """A picture that scrolls if it is wide. `kind`: a class for it."""
    return f'<div class="picture {kind}" tabindex="0" role="region" aria-label="{name}">\n{svg}</div>'
