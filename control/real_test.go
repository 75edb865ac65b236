package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft"
	"weft/control/store"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

// realServer is a server with its database on a disk, behind real HTTP.
func realServer(t *testing.T) (*Server, *httptest.Server) {
	t.Helper()
	s, _ := serverOn(t, t.TempDir())
	mux := http.NewServeMux()
	mux.Handle(wire.ControlPath, s)
	h := httptest.NewServer(mux)
	t.Cleanup(h.Close)
	return s, h
}

func serverOn(t testing.TB, dir string) (*Server, *Dir) {
	t.Helper()
	d, err := OpenDir(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(context.Background(), Config{Keys: d.Keys, Store: d.Store, URL: "https://weft.example", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

// realNode is a node on a real stream.
type realNode struct {
	t    *testing.T
	conn *stream.Messages
	in   chan wire.ServerMessage // closed at the stream's end
	m    weft.NetworkMap
	id   weft.NodeID
	last *weft.Error
}

func dialReal(t *testing.T, url string, server key.ServerPublic, machine key.MachinePrivate, hello wire.Hello) *realNode {
	t.Helper()
	conn, err := stream.DialNoise(t.Context(), stream.Options{URL: url, Path: wire.ControlPath, Proto: wire.ControlProto}, machine, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n := &realNode{t: t, conn: conn, in: make(chan wire.ServerMessage, 100)}
	n.say(wire.NodeMessage{Hello: &hello})
	go func() {
		defer close(n.in)
		for {
			b, err := conn.ReadMessage(wire.MaxServerMessage)
			if err != nil {
				return
			}
			m, err := wire.ParseServerMessage(b)
			if err != nil {
				t.Error(err)
				return
			}
			n.in <- m
		}
	}()
	return n
}

func (n *realNode) say(m wire.NodeMessage) {
	b, err := json.Marshal(m)
	if err == nil {
		err = n.conn.WriteMessage(b)
	}
	if err != nil {
		n.t.Error(err)
	}
}

// hear waits until what the server has said fulfils f, or the stream ends, and returns how long that took.
func (n *realNode) hear(what string, f func() bool) time.Duration {
	n.t.Helper()
	began := time.Now()
	for timeout := time.After(10 * time.Second); !f(); {
		select {
		case m, ok := <-n.in:
			switch {
			case !ok:
				return time.Since(began)
			case m.Welcome != nil:
				n.id = m.Welcome.Node
			case m.Map != nil:
				n.m = *m.Map
			case m.Change != nil:
				n.m = n.m.Apply(*m.Change)
			case m.Error != nil:
				n.last = m.Error
			}
		case <-timeout:
			n.t.Fatalf("waited too long: %s", what)
		}
	}
	return time.Since(began)
}

func (n *realNode) refused() bool { return n.last != nil }

func joinReal(t *testing.T, s *Server, url string, name string) *realNode {
	t.Helper()
	_, token, err := s.CreateKey(t.Context(), KeyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n := dialReal(t, url, token.Server, key.NewPrivate[key.Machine](),
		wire.Hello{Version: "1", Secret: token.Secret[:], NodeKey: key.NewPrivate[key.Node]().Public(), Name: name})
	n.hear("a map", func() bool { return n.m.Self.ID != 0 })
	if n.m.Self.ID != n.id || n.m.Self.Name != name {
		t.Fatalf("welcomed as %d, self is %+v", n.id, n.m.Self)
	}
	return n
}

func TestChangesReachTheOthersWithinASecondOverRealHTTP(t *testing.T) {
	s, h := realServer(t)
	a := joinReal(t, s, h.URL, "a")
	b := joinReal(t, s, h.URL, "b")
	within := func(what string, f func() bool) {
		t.Helper()
		if took := a.hear(what, f); took > time.Second {
			t.Errorf("%s: after %v", what, took)
		} else {
			t.Logf("%s: after %v", what, took)
		}
	}
	peer := func() weft.Node { n, _ := a.m.Peer(b.id); return n }
	within("that b is there", func() bool { return peer().Online })
	for i := range 5 {
		said := fmt.Sprint("behaviour ", i)
		b.say(wire.NodeMessage{Update: &wire.Update{NAT: said}})
		within("what b says", func() bool { return peer().NAT == said })
	}
	if err := s.RemoveNode(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	within("that b is gone", func() bool { return peer().ID == 0 })
	if took := b.hear("the end", b.refused); b.last == nil || b.last.Code != weft.CodeRemoved || took > time.Second {
		t.Errorf("b hears %v after %v", b.last, took)
	}
}

func TestAMachineKeyIsWhatAStreamProvesAndNotWhatItSays(t *testing.T) {
	s, h := realServer(t)
	a := joinReal(t, s, h.URL, "a")
	server := s.keys.Server.Public()
	// Another machine presents a's node key, and nothing else that is a's.
	b := dialReal(t, h.URL, server, key.NewPrivate[key.Machine](), wire.Hello{NodeKey: a.m.Self.Key, Epoch: s.epoch, MapVersion: a.m.Version})
	b.hear("an answer", func() bool { return b.refused() || b.id != 0 || b.m.Self.ID != 0 })
	if b.last == nil || !b.last.Code.Permanent() || b.id != 0 || b.m.Self.ID != 0 {
		t.Errorf("it hears %v and has %+v", b.last, b.m)
	}
	// A client that expects another server is told nothing at all.
	_, err := stream.DialNoise(t.Context(), stream.Options{URL: h.URL, Path: wire.ControlPath, Proto: wire.ControlProto},
		key.NewPrivate[key.Machine](), key.NewPrivate[key.Server]().Public())
	if weft.CodeOf(err) != weft.CodeWrongServer {
		t.Errorf("error %v", err)
	}
}

func TestARefusedMachineThatGoesOnTalkingHearsWhyAllTheSame(t *testing.T) {
	s, h := realServer(t)
	for range 10 {
		conn, err := stream.DialNoise(t.Context(), stream.Options{URL: h.URL, Path: wire.ControlPath, Proto: wire.ControlProto},
			key.NewPrivate[key.Machine](), s.keys.Server.Public())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			said := `{"ping":{"n":1}}`
			if i == 0 {
				said = `{"hello":{"version":"1"}}`
			}
			if err := conn.WriteMessage([]byte(said)); err != nil {
				t.Fatal(err)
			}
		}
		b, err := conn.ReadMessage(wire.MaxServerMessage)
		if m, _ := wire.ParseServerMessage(b); err != nil || m.Error == nil {
			t.Fatalf("it hears %q, %v", b, err)
		}
		conn.Close()
	}
}

func TestAServerThatStopsLetsGoOfItsStreams(t *testing.T) {
	s, h := realServer(t)
	a := joinReal(t, s, h.URL, "a")
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if a.hear("the end", a.refused); a.last == nil || a.last.Code != weft.CodeUnavailable {
		t.Errorf("a hears %v", a.last)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAFullDiskStopsNothingButWhatMustBeStored(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=512k", "weft-test", dir).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small tmpfs (run as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	s, _ := serverOn(t, dir)
	ctx := t.Context()
	made := 0
	var err error
	for err == nil {
		if _, err = s.CreateUser(ctx, fmt.Sprintf("user%d-%s", made, strings.Repeat("x", 50))); err == nil {
			made++
		}
		if made > 100_000 {
			t.Fatal("the disk does not get full")
		}
	}
	if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(err.Error(), "disk is full") {
		t.Fatalf("error %v", err)
	}
	if n := len(s.Users()); n != made || len(s.Status().Problems) != 1 {
		t.Errorf("%d users, want %d; problems %q", n, made, s.Status().Problems)
	}
	if out, err := exec.Command("mount", "-o", "remount,size=4m", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := s.CreateUser(ctx, "after"); err != nil || len(s.Status().Problems) != 0 {
		t.Errorf("with space again: %v, problems %q", err, s.Status().Problems)
	}
	st, err := s.store.Load(ctx)
	if err != nil || len(st.Users) != made+1 {
		t.Errorf("%d users are stored (%v), want %d", len(st.Users), err, made+1)
	}
}

// crashDir tells a process of the test binary that it is to be a server that gets killed.
const crashDir = "WEFT_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		registerForEver(dir)
	}
	os.Exit(m.Run())
}

// registerForEver registers and removes nodes as fast as it can, and says what was acknowledged.
func registerForEver(dir string) {
	fail := func(err error) { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
	d, err := OpenDir(context.Background(), dir)
	if err != nil {
		fail(err)
	}
	s, err := New(context.Background(), Config{Keys: d.Keys, Store: d.Store, URL: "https://weft.example", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		fail(err)
	}
	_, token, err := s.CreateKey(context.Background(), KeyRequest{Reusable: true})
	if err != nil {
		fail(err)
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...) // unbuffered: one write
	}
	say("ready")
	for range 16 {
		go func() {
			for i := 0; ; i++ {
				c := &session{s: s, machine: key.NewPrivate[key.Machine]().Public(), log: s.log}
				h := &wire.Hello{Secret: token.Secret[:], NodeKey: key.NewPrivate[key.Node]().Public(), Name: "robot"}
				if err := s.do(context.Background(), func(t *tx) error { return t.admit(c, h) }); err != nil {
					fail(err)
				}
				e, _ := s.now.Load().nodes.get(uint32(c.node))
				say("in %d %s %s %s", e.ID, e.IPv4, e.IPv6, c.machine)
				if i%4 == 0 {
					if err := s.RemoveNode(context.Background(), itoa(uint32(e.ID))); err != nil {
						fail(err)
					}
					say("out %d", e.ID)
				}
			}
		}()
	}
	select {}
}

func TestAKilledServerForgetsNoRegistrationAndGivesNoAddressTwice(t *testing.T) {
	dir := t.TempDir()
	type registration struct{ ipv4, ipv6, machine string }
	in := make(map[string]registration)
	out := make(map[string]bool)
	seen := make(map[string]string) // address -> number
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(pipe)
		kill, acknowledged := 1+rand.IntN(150), 0
		for lines.Scan() {
			f := strings.Fields(lines.Text())
			switch {
			case len(f) == 5 && f[0] == "in":
				if _, again := in[f[1]]; again {
					t.Fatalf("number %s was given twice", f[1])
				}
				for _, addr := range f[2:4] {
					if id, again := seen[addr]; again {
						t.Fatalf("address %s was given to %s and to %s", addr, id, f[1])
					}
					seen[addr] = f[1]
				}
				in[f[1]] = registration{f[2], f[3], f[4]}
				acknowledged++
			case len(f) == 2 && f[0] == "out":
				out[f[1]] = true
			}
			if acknowledged == kill {
				// What it says between now and its death counts as well: it is read to the end.
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()
		if acknowledged < kill {
			t.Fatalf("round %d ended by itself after %d registrations", round, acknowledged)
		}
	}
	st, err := store.OpenSQLite(t.Context(), filepath.Join(dir, DatabaseFile))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	state, err := st.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]registration)
	for _, n := range state.Nodes {
		have[itoa(uint32(n.ID))] = registration{n.IPv4.String(), n.IPv6.String(), n.Machine.String()}
	}
	for id, want := range in {
		got, ok := have[id]
		switch {
		case out[id] && ok:
			t.Errorf("node %s, removed, is back", id)
		case !out[id] && ok && got != want, !out[id] && !ok && !pending(id, state):
			t.Errorf("node %s is stored as %+v (%v), was acknowledged as %+v", id, got, ok, want)
		}
	}
	t.Logf("%d registrations and %d removals acknowledged in five lives", len(in), len(out))
}

// pending reports that a node's removal was stored, though it was not acknowledged any more.
func pending(id string, st store.State) bool {
	for _, v := range st.Revoked {
		if itoa(uint32(v.Node)) == id {
			return true
		}
	}
	return false
}
