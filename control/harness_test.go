package control

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weft"
	"weft/control/store"
	"weft/control/store/storetest"
	"weft/key"
	"weft/wire"
)

// framed makes messages of a pipe without Noise, whose goroutines and system calls a bubble could not see through.
// Nothing is buffered: a write waits until the other end has read all of it.
type framed struct{ net.Conn }

func (f framed) ReadMessage(limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > limit {
		return nil, fmt.Errorf("%d bytes, not %d", n, limit)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(f, b)
	return b, err
}

func (f framed) WriteMessage(b []byte) error {
	_, err := f.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func pipe() (a, b framed) {
	x, y := net.Pipe()
	return framed{x}, framed{y}
}

// world is a server with its store, and machines around it.
type world struct {
	t     testing.TB
	store *storetest.Memory
	*Server
	config Config
	serial uint64
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	w := &world{t: t, store: new(storetest.Memory)}
	w.config = Config{Keys: NewKeys(), Store: w.store, URL: "https://weft.example:8443", Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&w.config)
	}
	w.start()
	return w
}

func (w *world) start() {
	w.t.Helper()
	s, err := New(context.Background(), w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Server = s
}

func (w *world) stop() {
	w.t.Helper()
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *world) invite(r KeyRequest) []byte {
	w.t.Helper()
	_, token, err := w.CreateKey(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token.Secret[:]
}

// someKey makes a public key whose private half nobody needs.
func (w *world) someKey() [32]byte {
	w.serial++
	return [32]byte{0: 9, 8: byte(w.serial), 9: byte(w.serial >> 8), 10: byte(w.serial >> 16), 11: byte(w.serial >> 24)}
}

// machine is one that keeps its keys and what it was told, through any number of connections.
type machine struct {
	w       *world
	machine key.MachinePublic
	hello   wire.Hello

	mu      sync.Mutex
	conn    framed
	welcome *wire.Welcome
	has     bool
	netmap  weft.NetworkMap
	revoked []weft.NodeID
	errors  []*weft.Error
	pongs   []uint64
	signIn  *wire.SignIn
	maps    int // whole ones
	changes int
	bytes   int
	ended   chan struct{} // of the current connection
}

func (w *world) machine(secret []byte, name string) *machine {
	m := &machine{w: w, hello: wire.Hello{Version: "1", OS: "linux", Secret: secret, Name: name}}
	k, o := w.someKey(), w.someKey()
	m.machine, _ = key.PublicFrom[key.Machine](k[:])
	m.hello.NodeKey, _ = key.PublicFrom[key.Node](o[:])
	return m
}

func (w *world) relayMachine(secret []byte, name string) *machine {
	m := w.machine(secret, "")
	k := w.someKey()
	m.hello.NodeKey = key.NodePublic{}
	m.hello.Relay = &wire.HelloRelay{Name: name, URL: "https://" + name + ".example", UDPPort: 3478}
	m.hello.Relay.Key, _ = key.PublicFrom[key.Relay](k[:])
	return m
}

// rotate gives the machine another node key, for its next connection.
func (m *machine) rotate() {
	m.hello.NodeKey = m.w.machine(nil, "").hello.NodeKey
	m.hello.Rotation++
}

// dial connects without a word.
func (m *machine) dial() {
	mine, theirs := pipe()
	m.mu.Lock()
	m.conn, m.ended = mine, make(chan struct{})
	m.mu.Unlock()
	m.w.strangers.Add(1) // as ServeHTTP does
	go m.w.serve(theirs, m.machine)
	go m.listen(m.conn, m.ended)
}

// connect connects and says hello, with the map it has.
func (m *machine) connect() {
	m.dial()
	m.mu.Lock()
	h := m.hello
	if m.has {
		h.Epoch, h.MapVersion = m.welcome.Epoch, m.netmap.Version
	}
	m.mu.Unlock()
	_ = m.say(wire.NodeMessage{Hello: &h})
}

func (m *machine) say(n wire.NodeMessage) error {
	b, err := json.Marshal(n)
	if err != nil {
		m.w.t.Error(err)
	}
	return m.conn.WriteMessage(b)
}

func (m *machine) update(u wire.Update) { _ = m.say(wire.NodeMessage{Update: &u}) }

func (m *machine) hangUp() { m.conn.Close() }

func (m *machine) listen(c framed, ended chan struct{}) {
	defer close(ended)
	defer c.Close()
	for {
		b, err := c.ReadMessage(wire.MaxServerMessage)
		if err != nil {
			return
		}
		s, err := wire.ParseServerMessage(b)
		if err != nil {
			m.w.t.Errorf("the server said %s: %v", b, err)
			return
		}
		m.hear(s, len(b))
		if s.Error != nil && s.Error.Code.Permanent() {
			return
		}
	}
}

func (m *machine) hear(s wire.ServerMessage, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += size
	switch {
	case s.Welcome != nil:
		if m.welcome != nil && m.welcome.Epoch != s.Welcome.Epoch {
			m.has = false
		}
		m.welcome = s.Welcome
	case s.Map != nil:
		m.netmap, m.has = *s.Map, true
		m.maps++
	case s.Change != nil:
		if !m.has {
			m.w.t.Error("a change of no map")
		}
		m.netmap = m.netmap.Apply(*s.Change)
		m.changes++
	case s.Revoked != nil:
		m.revoked = s.Revoked.Nodes
	case s.Error != nil:
		m.errors = append(m.errors, s.Error)
	case s.SignIn != nil:
		m.signIn = s.SignIn
	case s.Pong != nil:
		m.pongs = append(m.pongs, s.Pong.N)
	}
}

// lastError is the code of the last error heard, and its sentence.
func (m *machine) lastError() (weft.Code, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.errors) == 0 {
		return "", ""
	}
	e := m.errors[len(m.errors)-1]
	return e.Code, e.Message
}

func (m *machine) current() weft.NetworkMap {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.netmap
}

func (m *machine) id() weft.NodeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.welcome == nil {
		return 0
	}
	return m.welcome.Node
}

func (m *machine) gone() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// peer is what this machine's map says of another one.
func (m *machine) peer(t testing.TB, o *machine) weft.Node {
	t.Helper()
	n, ok := m.current().Peer(o.id())
	if !ok {
		t.Fatalf("node %d is not in the map of node %d", o.id(), m.id())
	}
	return n
}

// bubble runs a test in one: time passes when everybody waits.
func bubble(t *testing.T, f func(t *testing.T, w *world), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, change...)
		defer w.stop()
		f(t, w)
	})
}

// settle lets everything happen that needs no more than a second.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (w *world) join(r KeyRequest, name string) *machine {
	w.t.Helper()
	m := w.machine(w.invite(r), name)
	m.connect()
	settle()
	if m.id() == 0 || !m.has {
		code, message := m.lastError()
		w.t.Fatalf("%s was not let in: %s %s", name, code, message)
	}
	return m
}

var same = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b key.NodePublic) bool { return a == b }),
	cmp.Comparer(func(a, b key.RelayPublic) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

// wholeMap is a node's map, made anew from the server's state and by no code that sessions use.
func (s *snapshot) wholeMap(self weft.NodeID) weft.NetworkMap {
	m := weft.NetworkMap{
		Version: s.version, Relays: s.relays.list, Domain: s.resolving.doc.domain(), DNS: s.resolving.doc.DNS,
		Ranges: []netip.Prefix{s.net.IPv4, s.net.IPv6}, Service: s.net.IPv4.Addr().Next(), NoPolicy: s.law.isDefault(),
	}
	for _, e := range s.nodes.all() {
		switch {
		case e.ID == self:
			m.Self = e.node()
			m.Rules = slices.Concat(s.law.policy.Rules(m.Self), m.Rules)
		case e.standing == member:
			m.Peers = append(m.Peers, e.node())
		}
		if e.Gateway == self {
			for _, r := range s.law.policy.Rules(e.node()) {
				if r.To == nil {
					r.To = []netip.Prefix{netip.PrefixFrom(e.IPv4, 32), netip.PrefixFrom(e.IPv6, 128)}
				}
				m.Rules = append(m.Rules, r)
			}
		}
	}
	return m
}

// checkMap reports where the map that a machine has put together differs from one made anew.
func (m *machine) checkMap() error {
	have := m.current()
	if _, err := wire.ParseTicket(have.Ticket); err != nil {
		return fmt.Errorf("node %d has no ticket: %w", m.id(), err)
	}
	have.Ticket = nil
	want := m.w.now.Load().wholeMap(m.id())
	if have.Version < want.Version {
		have.Version = want.Version // what is not a node's business makes it no version
	}
	if d := cmp.Diff(want, have, same); d != "" {
		return fmt.Errorf("the map of node %d differs (- made anew, + put together):\n%s", m.id(), d)
	}
	return nil
}

// failing is a store whose disk is full while it says so.
type failing struct {
	mu   sync.Mutex
	full bool
}

func (f *failing) set(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *failing) fail(store.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return fmt.Errorf("write to the database: %w", store.ErrFull)
	}
	return nil
}
