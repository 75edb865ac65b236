package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"
)

// busyTimeout is how long a write waits for somebody who looks into the file with another program, a backup
// for one.
const busyTimeout = 5 * time.Second

// SQLite is a Store in one file, with SQLite's write-ahead log beside it.
type SQLite struct {
	path string
	db   *sql.DB
	conn *sql.Conn // the one that everything goes through
	stmt statements
}

// OpenSQLite opens the file at path, and makes it (readable by its owner only) where there is none.
func OpenSQLite(ctx context.Context, path string) (*SQLite, error) {
	s := &SQLite{path: path}
	if err := s.open(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("open the database %s: %w", path, full(err))
	}
	return s, nil
}

func (s *SQLite) open(ctx context.Context) error {
	// SQLite itself would make it as the umask says. The log files take over the mode of this one.
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return plainer(err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	abs, err := filepath.Abs(s.path)
	if err != nil {
		return err
	}
	query := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		"synchronous(FULL)", // a commit is on the disk before it is acknowledged
		"foreign_keys(1)",
		"trusted_schema(0)",
	}}
	s.db, err = sql.Open("sqlite", (&url.URL{Scheme: "file", Path: abs, RawQuery: query.Encode()}).String())
	if err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return err
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	return s.stmt.prepare(ctx, s.conn)
}

func (s *SQLite) migrate(ctx context.Context) error {
	var id, version, tables int
	err := errors.Join(
		s.conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id),
		s.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version),
		s.conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables),
	)
	switch {
	case err != nil:
		return err
	case id != applicationID && (id != 0 || tables > 0):
		return errors.New("it is a database of another program: choose another directory")
	case version > format:
		return fmt.Errorf("it was %w (its format is %d, this one knows %d): update weft, or restore the backup made before the last update",
			ErrNewer, version, format)
	case version == format:
		return nil
	}
	steps, at := []string{schema}, format
	if version > 0 {
		steps, at = migrations[version-1:], version+1
	}
	return s.transaction(ctx, func() error {
		for i, m := range steps {
			if _, err := s.conn.ExecContext(ctx, m); err != nil {
				return fmt.Errorf("bring it to format %d: %w", at+i, err)
			}
		}
		_, err := s.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, format))
		return err
	})
}

// transaction runs f between BEGIN and COMMIT. It is spelled out, since after a COMMIT that failed (a full disk)
// SQLite may still be inside the transaction.
func (s *SQLite) transaction(ctx context.Context, f func() error) error {
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// Fails where SQLite has rolled back by itself already, which is as good. It must run though ctx has ended.
		_, _ = s.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	}
	return err
}

// Apply implements [Store].
func (s *SQLite) Apply(ctx context.Context, b Batch) error {
	if len(b) == 0 {
		return nil
	}
	err := s.transaction(ctx, func() error {
		for _, op := range b {
			if err := s.stmt.apply(ctx, op); err != nil {
				return fmt.Errorf("%T: %w", op, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write to the database %s: %w", s.path, full(err))
	}
	return nil
}

// Load implements [Store].
func (s *SQLite) Load(ctx context.Context) (State, error) {
	var st State
	err := s.transaction(ctx, func() error { return load(ctx, s.conn, &st) })
	if err != nil {
		return State{}, fmt.Errorf("read the database %s: %w", s.path, full(err))
	}
	return st, nil
}

// CopyTo makes a consistent copy in a new file, readable by its owner only.
func (s *SQLite) CopyTo(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) // SQLite takes an empty file for none
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "VACUUM INTO ?", path)
	}
	if err != nil {
		return fmt.Errorf("copy the database %s: %w", s.path, full(err))
	}
	return nil
}

// Close implements [Store].
func (s *SQLite) Close() error {
	var errs []error
	errs = append(errs, s.stmt.close())
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the database %s: %w", s.path, err)
	}
	return nil
}

// full tells the errors that callers act on from the others.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w on its disk (%w)", ErrFull, err)
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch code := e.Code(); {
	case code&0xff == sqlitelib.SQLITE_FULL,
		// The shared-memory file beside the log could not grow: on Linux that is a full disk, too.
		code == sqlitelib.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("%w on its disk (%w)", ErrFull, err)
	case code&0xff == sqlitelib.SQLITE_CONSTRAINT:
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case code&0xff == sqlitelib.SQLITE_NOTADB:
		return fmt.Errorf("it is not a database (%w): restore it from a backup, or choose another directory", err)
	case code&0xff == sqlitelib.SQLITE_CORRUPT:
		return fmt.Errorf("it is damaged (%w): restore it from a backup", err)
	}
	return err
}

// plainer says of an error of opening a file what to do about it; the path is said by the caller.
func plainer(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: make its directory first", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as the user who owns it", err)
	}
	return err
}
