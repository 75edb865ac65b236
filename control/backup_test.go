package control

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weft"
	"weft/control/store"
	"weft/key"
	"weft/wire"
)

// backedUp is a server on a disk with users, and a backup of it that was made while it was being changed.
func backedUp(t *testing.T) (backup []byte, secrets map[string][]byte, member key.MachinePublic) {
	t.Helper()
	d, err := OpenDir(t.Context(), filepath.Join(t.TempDir(), "server"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.WriteFile(filepath.Join(d.Path, "relay.key"), []byte("of the relay"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), Config{Keys: d.Keys, Store: d.Store, Dir: d.Path, URL: "https://weft.example", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	secrets = make(map[string][]byte)
	for name, r := range map[string]KeyRequest{"spent": {}, "unspent": {}, "reusable": {Reusable: true}, "revoked": {Reusable: true}} {
		k, token, err := s.CreateKey(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		secrets[name] = token.Secret[:]
		if name == "revoked" {
			err = s.RemoveKey(t.Context(), k.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	joined := joins(t, s, secrets["spent"])
	if joined == nil {
		t.Fatal("not let in")
	}
	var busy sync.WaitGroup
	stop := make(chan struct{})
	busy.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = s.CreateUser(context.Background(), fmt.Sprint("u", i))
			}
		}
	})
	var out bytes.Buffer
	before := len(s.Users())
	err = s.Backup(t.Context(), &out)
	close(stop)
	busy.Wait()
	if err != nil || before > len(s.Users()) {
		t.Fatal(err)
	}
	if !missing(filepath.Join(d.Path, copyFile)) {
		t.Error("the copy is left in the server's directory")
	}
	return out.Bytes(), secrets, *joined
}

// joins has a new machine come with a secret, and returns its key if it is let in.
func joins(t *testing.T, s *Server, secret []byte) *key.MachinePublic {
	t.Helper()
	machine := key.NewPrivate[key.Machine]().Public()
	c := &session{s: s, machine: machine, log: s.log}
	err := s.do(t.Context(), func(t *tx) error {
		return t.admit(c, &wire.Hello{Name: "m", Secret: secret, NodeKey: key.NewPrivate[key.Node]().Public()})
	})
	if err != nil {
		return nil
	}
	return &machine
}

func TestARestoredServerCarriesOn(t *testing.T) {
	backup, secrets, member := backedUp(t)
	dir := filepath.Join(t.TempDir(), "new", "server")
	r, err := Restore(t.Context(), bytes.NewReader(backup), dir, false)
	if err != nil || r.Nodes != 1 || len(r.Withdrawn) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "relay.key")); err != nil || string(b) != "of the relay" {
		t.Errorf("%q, %v", b, err)
	}
	s, _ := serverOn(t, dir)
	if n := s.Nodes()[0]; n.Machine != member.String() || n.Standing != Member {
		t.Errorf("%+v", n)
	}
	if len(s.Users()) != r.Users {
		t.Errorf("%d users, %d were restored", len(s.Users()), r.Users)
	}
	for name, good := range map[string]bool{"spent": false, "unspent": false, "revoked": false, "reusable": true} {
		if in := joins(t, s, secrets[name]) != nil; in != good {
			t.Errorf("the key that was %s lets a machine in: %v", name, in)
		}
	}
	if n := s.Nodes(); len(n) != 2 || n[1].ID != n[0].ID+1 {
		t.Errorf("%+v", n)
	}

	kept := filepath.Join(t.TempDir(), "kept")
	if r, err := Restore(t.Context(), bytes.NewReader(backup), kept, true); err != nil || len(r.Withdrawn) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	again, _ := serverOn(t, kept)
	if joins(t, again, secrets["unspent"]) == nil || joins(t, again, secrets["unspent"]) != nil {
		t.Error("a key that was kept lets in another number of machines than one")
	}
}

func TestNothingIsRestoredOfWhatIsNoBackup(t *testing.T) {
	backup, _, _ := backedUp(t)
	archive := func(files ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range files {
			h := tar.Header{Name: name, Mode: 0o600, Size: 1, Typeflag: tar.TypeReg}
			if target, link := strings.CutPrefix(name, "link:"); link {
				h = tar.Header{Name: "weft.db", Linkname: target, Typeflag: tar.TypeSymlink}
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("x"))
			}
		}
		w.Close()
		return b.Bytes()
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "server")
	for name, b := range map[string][]byte{
		"nothing": nil, "words": []byte(strings.Repeat("words ", 500)), "half of one": backup[:len(backup)/2], "without a database": archive("server.key", "signing.key"),
		"no keys": archive("server.key", "signing.key", "weft.db"), "a way out": archive("../escaped"), "a root": archive("/escaped"),
		"a directory": archive("a/b"), "a link": archive("link:/etc/passwd"), "a log of the database": archive("weft.db-wal"), "a file twice": archive("server.key", "server.key"),
	} {
		if _, err := Restore(t.Context(), bytes.NewReader(b), dir, false); err == nil {
			t.Errorf("%s: restored", name)
		}
		if left, _ := os.ReadDir(parent); len(left) > 0 {
			t.Fatalf("%s: %v is left", name, left)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(backup), dir, false); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a directory with something in it: %v", err)
	}
}

func TestABackupThatCannotBeMadeSaysSo(t *testing.T) {
	w := newWorld(t)
	defer w.stop()
	if err := w.Backup(t.Context(), io.Discard); weft.CodeOf(err) != weft.CodeUnavailable {
		t.Errorf("of a store in memory: %v", err)
	}
	s, d := serverOn(t, filepath.Join(t.TempDir(), "server"))
	s.dir = d.Path
	broken := errors.New("the line broke")
	if err := s.Backup(t.Context(), writerFunc(func([]byte) (int, error) { return 0, broken })); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if _, err := s.CreateUser(t.Context(), "u"); err != nil {
		t.Errorf("after a failed backup: %v", err)
	}
	if st, err := d.Store.Load(t.Context()); err != nil || len(st.Users) != 1 {
		t.Errorf("%d users, %v", len(st.Users), err)
	}
	_ = store.State{}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
