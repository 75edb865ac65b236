package control

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft"
	"weft/control/store"
)

// A backup is a tar archive of the server's directory: its keys and certificate as they are, and the database as it is at
// one moment between two changes, last, so that an archive that was cut has none. Whoever has it can be the server.

const (
	// copyFile is where the database's copy is while it is sent.
	copyFile = "backup.db"
	// maxBackupFile bounds a file of a backup, in bytes: far more than the database of the largest network.
	maxBackupFile = 4 << 30
	// maxBackupFiles bounds their number.
	maxBackupFiles = 64
)

// keptOut are the files of a directory that are of a running server alone, or are in the copy of the database.
func keptOut(name string) bool {
	return slices.Contains([]string{LockFile, SocketFile, copyFile}, name) || strings.HasPrefix(name, DatabaseFile)
}

// A copier is a store that can make a copy of itself in a new file.
type copier interface {
	CopyTo(ctx context.Context, path string) error
}

// Backup writes a backup, while the server goes on. All that was answered before it is called is in it.
func (s *Server) Backup(ctx context.Context, w io.Writer) error {
	from, ok := s.store.(copier)
	if s.dir == "" || !ok {
		return sentence(weft.CodeUnavailable, "this server keeps nothing in a directory that could be copied")
	}
	s.backups.Lock() // one at a time has copyFile
	defer s.backups.Unlock()
	at := filepath.Join(s.dir, copyFile)
	defer os.Remove(at)
	err := s.do(ctx, func(*tx) error {
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return from.CopyTo(ctx, at)
	})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, e := range entries {
		if e.Type().IsRegular() && !keptOut(e.Name()) {
			if err := addFile(out, filepath.Join(s.dir, e.Name()), e.Name()); err != nil {
				return err
			}
		}
	}
	return errors.Join(addFile(out, at, DatabaseFile), out.Close())
}

func addFile(out *tar.Writer, path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	err = out.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: st.Size(), ModTime: st.ModTime(), Typeflag: tar.TypeReg})
	if err == nil {
		_, err = io.Copy(out, f)
	}
	return err
}

// Restored says what was restored.
type Restored struct {
	Nodes, Users int
	Withdrawn    []uint32 // join keys
}

// Restore makes a server's directory of a backup, whole or not at all. There must be nothing at dir, or an empty
// directory. A key for one machine that was good at the backup may have been used since, which nobody can know: such
// keys are withdrawn, unless keepKeys says that none was.
func Restore(ctx context.Context, r io.Reader, dir string, keepKeys bool) (Restored, error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return Restored{}, fmt.Errorf("%s is not empty: restore to a new directory, or move that one away first", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Restored{}, err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(dir)), 0o700); err != nil {
		return Restored{}, err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".restore-")
	if err != nil {
		return Restored{}, err
	}
	defer os.RemoveAll(fresh)
	if err := unpack(r, fresh); err != nil {
		return Restored{}, err
	}
	out, err := checkRestored(ctx, fresh, keepKeys)
	if err != nil {
		return Restored{}, err
	}
	return out, os.Rename(fresh, dir)
}

// unpack writes the files of an archive into a directory that is there for them.
func unpack(r io.Reader, dir string) error {
	in := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		switch {
		case err != nil:
			return fmt.Errorf("it is no backup of weft, or damaged: %w", err)
		case n >= maxBackupFiles || h.Size > maxBackupFile || h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) || filepath.Base(h.Name) != h.Name ||
			h.Name != DatabaseFile && keptOut(h.Name):
			return fmt.Errorf("it is no backup of weft: no server has a file %.100q", h.Name)
		}
		f, err := os.OpenFile(filepath.Join(dir, h.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func checkRestored(ctx context.Context, dir string, keepKeys bool) (out Restored, err error) {
	if missing(filepath.Join(dir, ServerKeyFile)) || missing(filepath.Join(dir, SigningKeyFile)) || missing(filepath.Join(dir, DatabaseFile)) {
		return out, errors.New("it is no backup of weft, or was cut: it has not the keys and the database of a server")
	}
	d, err := OpenDir(ctx, dir)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, d.Close(), os.Remove(filepath.Join(dir, LockFile))) }()
	st, err := d.Store.Load(ctx)
	if err != nil {
		return out, err
	}
	out.Nodes, out.Users = len(st.Nodes), len(st.Users)
	var batch store.Batch
	for _, k := range st.Keys {
		if !keepKeys && !k.Reusable && k.Uses == 0 && k.Revoked.IsZero() {
			k.Revoked = k.Created // whenever: before now
			batch = append(batch, store.PutKey(k))
			out.Withdrawn = append(out.Withdrawn, k.ID)
		}
	}
	return out, d.Store.Apply(ctx, batch)
}
