package host

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
)

// Several overlays of one machine take resolv.conf over one above the other: to each the file of the one before is the former
// one. They leave in any order, and may be killed. So each says in the file that it is in it (layer), and who puts
// a former file back looks whether those who wrote that are still there.

// deepest bounds how many files are looked through that overlays wrote one above the other.
const deepest = 16

// backupOf is where the overlay of an interface keeps the file that it replaced.
func backupOf(path, iface string) string { return path + ".before-" + iface }

// remaining are the overlays that are in the file that is there now, and up. The one of an interface, which is coming or going
// itself, is left out.
func (e *resolverEnv) remaining(now []byte, but string) (func(iface string) bool, error) {
	var there []string
	for _, l := range layers(now) {
		_, up, err := e.linkIndex(l.iface)
		if err != nil {
			return nil, err
		}
		if up && l.iface != but {
			there = append(there, l.iface)
		}
	}
	return func(iface string) bool { return slices.Contains(there, iface) }, nil
}

// beneath finds what a file becomes without overlays that are gone: what was there before the last of them, if that was kept, else the
// text without their lines. Backups are the kept files that were looked through; the last of them is what was found.
func beneath(c confFile, path string, inPlace bool, remains func(iface string) bool) (found confFile, backups []string, err error) {
	for range deepest {
		iface, ok := writtenFor(c.Content)
		if !ok || inPlace || c.Kind == kindLink || remains(iface) {
			break
		}
		former, err := inspect(backupOf(path, iface))
		if err != nil {
			return c, nil, err
		}
		if former.Kind == kindNone || slices.Contains(backups, backupOf(path, iface)) {
			break
		}
		c, backups = *former, append(backups, backupOf(path, iface))
	}
	if c.Kind == kindFile || inPlace {
		c.Content = without(c.Content, remains)
	}
	return c, backups, nil
}

// without takes the lines of all overlays out of a text but of those that remain.
func without(text []byte, remains func(iface string) bool) []byte {
	for _, l := range layers(text) {
		if !remains(l.iface) {
			text = takeover{iface: l.iface, server: l.server, search: l.search}.strip(text, nil)
		}
	}
	return text
}

// former is what the file becomes when we leave, and the kept files that it takes the place of.
func (e *resolverEnv) former(f *savedFile, iface string, now []byte) (*savedFile, []string, error) {
	remains, err := e.remaining(now, iface)
	if err != nil {
		return nil, nil, err
	}
	out := *f
	var backups []string
	if _, another := writtenFor(f.Content); another && f.Backup != "" {
		// Who was beneath us and left has put there what was beneath it.
		if kept, err := inspect(f.Backup); err == nil && kept.Kind != kindNone {
			out.confFile, backups = *kept, append(backups, f.Backup)
		}
	}
	found, others, err := beneath(out.confFile, f.Path, f.InPlace, remains)
	out.confFile = found
	if len(others) > 0 {
		out.Backup = others[len(others)-1]
	}
	if backups = append(backups, others...); len(backups) == 0 && f.Backup != "" {
		backups = append(backups, f.Backup)
	}
	return &out, backups, err
}

// leaveBeneath gives what we kept to the overlay whose former file is ours, if there is one.
func (f *savedFile) leaveBeneath(iface string, now []byte) error {
	if f.Backup == "" {
		return nil
	}
	for _, l := range layers(now) {
		if l.iface == iface {
			continue
		}
		above := backupOf(f.Path, l.iface)
		if c, err := inspect(above); err != nil {
			return err
		} else if of, ours := writtenFor(c.Content); ours && of == iface {
			if err := os.Rename(f.Backup, above); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// isNearlyOurs reports whether what is there now is what we wrote but for the lines of overlays that have left since.
func (f *savedFile) isNearlyOurs(now *confFile) bool {
	if f.isOurs(now) || !f.canBeEdited(now) {
		return f.isOurs(now)
	}
	here := layers(now.Content)
	return bytes.Equal(now.Content, without(f.Written, func(iface string) bool {
		return slices.ContainsFunc(here, func(l layer) bool { return l.iface == iface })
	}))
}

// removeAll removes files that may be gone.
func removeAll(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
