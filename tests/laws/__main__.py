"""`make laws` writes the table of what holds of which algorithm."""

from laws.matrix import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
print(f"wrote {PAGE}")
