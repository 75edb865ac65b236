package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// abandonedAfter is when a temporary file counts as left behind by a process that
// was killed: writing one takes milliseconds, on a sick disk seconds.
const abandonedAfter = time.Hour

// WriteFileAtomic replaces the content of path: after a crash at any moment the
// file has the old content or the new one, never a part. The error says which of
// the two it has. A symbolic link at path is replaced, not followed.
func WriteFileAtomic(path string, data []byte, perm fs.FileMode) error {
	name, err := writeTemp(path, data, perm, func(*os.File) error { return nil })
	if err == nil {
		if err = os.Rename(name, path); err != nil {
			_ = os.Remove(name)
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("write %s: the disk is full: free some space; what the file held before is intact: %w", path, err)
	case err != nil:
		return fmt.Errorf("write %s, which keeps what it held before: %w", path, err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: it is written, but a power cut may still undo that: %w", path, err)
	}
	return nil
}

// writeTemp puts data on disk in a new file beside path, ready to be renamed.
// What dress gives the file (an owner, say) is on disk with it.
func writeTemp(path string, data []byte, perm fs.FileMode, dress func(*os.File) error) (name string, err error) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	removeAbandoned(dir, base)
	f, err := os.CreateTemp(dir, tempPrefix(base)+"*")
	if err != nil {
		return "", err
	}
	err = func() error {
		if err := dress(f); err != nil {
			return err
		}
		if err := f.Chmod(perm); err != nil {
			return err
		}
		if _, err := f.Write(data); err != nil {
			return err
		}
		// Without it a power cut after the rename can leave an empty file.
		return f.Sync()
	}()
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

func tempPrefix(base string) string { return "." + base + ".weft-tmp-" }

// removeAbandoned keeps keys from lying about in files that nobody knows of.
func removeAbandoned(dir, base string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // creating the new file will say why
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix(base)) {
			continue
		}
		if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > abandonedAfter {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// syncDir makes a rename in dir survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync a directory and say EINVAL.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
