"""An audit as one self-contained HTML page."""

from cacheprefix.report.page import SHOWN_CALLS, page_data, write_page

__all__ = ["SHOWN_CALLS", "page_data", "write_page"]
