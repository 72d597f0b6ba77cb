"""Pictures of an analysed trace: for a terminal, as SVG, and as a page to step through the domino."""

from snapline.recovery.pictures_html import analysis_html
from snapline.recovery.pictures_svg import analysis_svg
from snapline.recovery.pictures_text import analysis_text

__all__ = ["analysis_html", "analysis_svg", "analysis_text"]
