"""The program of `make laws`: it writes the table of laws that hold for each algorithm."""

from laws.matrix import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
print(f"wrote {PAGE}")
