"""Writes all pages as files that a browser opens without a server."""

from pathlib import Path

from jaxsearchrl.errors import UserError
from jaxsearchrl.viewer.site import Site


def write_site(site: Site, folder: str | Path) -> tuple[int, int]:
    """Returns how many files were written, and how many of them say only why their record cannot be shown.

    Raises UserError for a folder that is not empty, or where a page cannot be written.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--export={folder}: must be a new or an empty folder")
    count = faults = 0
    for path in site.paths():
        page = site.page(path, {})
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(page.body)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error})") from error
        count += 1
        faults += page.status != 200
    return count, faults
