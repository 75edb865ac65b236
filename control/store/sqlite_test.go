package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/control/store"
	"weft/control/store/storetest"
)

func open(t *testing.T, path string) *store.SQLite {
	t.Helper()
	s, err := store.OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSQLitePassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Store {
		path := filepath.Join(t.TempDir(), "a %3f?#name.db")
		return func() store.Store {
			s, err := store.OpenSQLite(context.Background(), path)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}

func TestOnlyTheOwnerCanReadTheFiles(t *testing.T) {
	dir := t.TempDir()
	defer syscall.Umask(syscall.Umask(0))
	s := open(t, filepath.Join(dir, "weft.db"))
	if err := s.Apply(t.Context(), store.Batch{store.PutUser{Name: "u"}}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v: want the database and its log", files, err)
	}
	for _, f := range files {
		if st, err := f.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600 (%v)", f.Name(), st.Mode(), err)
		}
	}
}

func TestACommitIsOnTheDiskBeforeItReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.db")
	open(t, path)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var mode string
	if err := db.QueryRow("PRAGMA journal_mode").Scan(&mode); err != nil || mode != "wal" {
		t.Errorf("journal mode %q (%v), want wal", mode, err)
	}
}

func execute(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func TestADatabaseOfANewerWeftIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.db")
	s, err := store.OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	execute(t, path, "PRAGMA user_version = 1000")
	_, err = store.OpenSQLite(t.Context(), path)
	if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "update weft") {
		t.Errorf("error %v, want one that wraps ErrNewer and says what to do", err)
	}
}

func TestADatabaseOfAnotherProgramIsRefusedAndLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.db")
	execute(t, path, "CREATE TABLE nodes (x)")
	if _, err := store.OpenSQLite(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("error %v", err)
	}
	execute(t, path, "INSERT INTO nodes VALUES (1)")
}

func TestAFileThatIsNoDatabaseIsRefusedAndLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.db")
	letter := strings.Repeat("Dear sir or madam, ", 1000)
	if err := os.WriteFile(path, []byte(letter), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.OpenSQLite(t.Context(), path); err == nil || !strings.Contains(err.Error(), "not a database") {
		t.Errorf("error %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != letter {
		t.Error("the file was changed")
	}
}

func TestAMissingDirectoryIsSaid(t *testing.T) {
	_, err := store.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "no", "weft.db"))
	if err == nil || !strings.Contains(err.Error(), "make its directory") {
		t.Errorf("error %v", err)
	}
}

func TestAFullDiskIsSurvived(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "weft-test", dir).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small tmpfs (run as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	s := open(t, filepath.Join(dir, "weft.db"))
	put := func(i int) error {
		return s.Apply(t.Context(), store.Batch{store.PutUser{Name: fmt.Sprintf("%d-%s", i, strings.Repeat("x", 2000)), Created: time.Unix(1, 0)}})
	}
	stored := 0
	var err error
	for err == nil {
		if err = put(stored); err == nil {
			stored++
		}
	}
	for range 3 { // it stays refused, not broken
		if err := put(stored); !errors.Is(err, store.ErrFull) {
			t.Fatalf("error %v, want one that wraps ErrFull", err)
		}
		if st, err := s.Load(t.Context()); err != nil || len(st.Users) != stored {
			t.Fatalf("%d users (%v), want %d", len(st.Users), err, stored)
		}
	}
	if out, err := exec.Command("mount", "-o", "remount,size=2m", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := put(stored); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	if st, err := s.Load(t.Context()); err != nil || len(st.Users) != stored+1 {
		t.Fatalf("%d users (%v), want %d", len(st.Users), err, stored+1)
	}
}
