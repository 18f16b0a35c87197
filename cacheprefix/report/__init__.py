"""An audit as one self-contained HTML page."""

from cacheprefix.report.page import page_data, write_page

__all__ = ["page_data", "write_page"]
