package direct

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"weft"
	"weft/engine"
	"weft/key"
	"weft/wire"
)

var _ engine.DirectStream = (*Conn)(nil)

// patience bounds whatever a test waits for: far more than it should take.
const patience = 20 * time.Second

// A node is a Connector on loopback, and what it was told.
type node struct {
	*Connector
	t    *testing.T
	id   weft.NodeID
	key  key.NodePrivate
	at   netip.AddrPort // where it listens
	mu   sync.Mutex
	cond *sync.Cond
	up   []*Conn
	down []*Conn
	got  map[string]int // datagrams, with the peer in front
}

func newNode(t *testing.T, id weft.NodeID) *node {
	n := &node{t: t, id: id, key: key.NewPrivate[key.Node](), got: map[string]int{}}
	n.cond = sync.NewCond(&n.mu)
	n.begin()
	t.Cleanup(func() { n.Close() })
	return n
}

// begin starts it, or starts it anew.
func (n *node) begin() {
	note := func(f func()) {
		n.mu.Lock()
		defer n.mu.Unlock()
		f()
		n.cond.Broadcast()
	}
	n.Connector = New(Config{
		Self: n.id, Logger: slog.New(slog.DiscardHandler),
		Up: func(c *Conn) { note(func() { n.up = append(n.up, c) }) },
		Down: func(c *Conn) {
			note(func() {
				n.up = slices.DeleteFunc(n.up, func(o *Conn) bool { return o == c })
				n.down = append(n.down, c)
			})
		},
		Deliver: func(c *Conn, list [][]byte) {
			note(func() {
				for _, b := range list {
					n.got[fmt.Sprintf("%d: %s", c.Peer, b)]++
				}
			})
		},
	})
}

func (n *node) listen(link weft.LinkID) {
	n.t.Helper()
	if err := n.Listen(link, "", 0, false); err != nil {
		n.t.Fatal(err)
	}
	port := n.listeners[link].Addr().(*net.TCPAddr).AddrPort().Port()
	n.at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
}

// knows has it know others.
func (n *node) knows(others ...*node) {
	n.t.Helper()
	peers := map[weft.NodeID]key.Box{}
	for _, o := range others {
		box, err := wire.PeerBox(n.key, o.key.Public())
		if err != nil {
			n.t.Fatal(err)
		}
		peers[o.id] = box
	}
	n.SetPeers(peers)
}

// waits waits until something is so.
func (n *node) waits(what string, so func() bool) {
	n.t.Helper()
	late := time.AfterFunc(patience, func() { n.mu.Lock(); n.cond.Broadcast(); n.mu.Unlock() })
	defer late.Stop()
	began := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	for !so() {
		if time.Since(began) >= patience {
			n.t.Fatalf("%d waited for %s", n.id, what)
		}
		n.cond.Wait()
	}
}

func (n *node) conns() []*Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.up)
}

// pair is two nodes that know each other; both listen.
func pair(t *testing.T) (a, b *node) {
	a, b = newNode(t, 1), newNode(t, 2)
	a.knows(b)
	b.knows(a)
	a.listen(0)
	b.listen(0)
	return a, b
}

// closed is an address at which nobody listens.
func closed(t *testing.T) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestTwoNodesConnectAndCarryDatagramsBothWays(t *testing.T) {
	a, b := pair(t)
	if err := a.Dial(2, 3, "", []netip.AddrPort{b.at}); err != nil {
		t.Fatal(err)
	}
	b.waits("a connection", func() bool { return len(b.up) == 1 })
	x, y := a.conns()[0], b.conns()[0]
	if x.Peer != 2 || x.Via != weft.TCPVia(3, b.at) || x.Far != 0 || !x.Dialed {
		t.Errorf("here it is %+v", x)
	}
	if y.Peer != 1 || y.Via.Method != weft.DirectTCP || y.Via.Link != 0 || y.Far != 3 || y.Dialed {
		t.Errorf("there it is %+v", y)
	}
	if a.Find(2, x.Via) != x || a.Find(2, y.Via) != nil || b.Find(1, y.Via) != y {
		t.Error("it is not found by its via, or by another")
	}
	if err := x.SendTo(2, [][]byte{[]byte("one"), []byte("two")}); err != nil { // as engines send: with the receiver's number
		t.Fatal(err)
	}
	if err := y.SendAhead(1, []byte("ahead")); err != nil {
		t.Fatal(err)
	}
	b.waits("two datagrams", func() bool { return b.got["1: one"] == 1 && b.got["1: two"] == 1 })
	a.waits("one ahead", func() bool { return a.got["2: ahead"] == 1 })
	y.Close()
	a.waits("the end", func() bool { return len(a.up) == 0 && len(a.down) == 1 })
	b.waits("the end", func() bool { return len(b.up) == 0 && len(b.down) == 1 })
	if err := x.SendTo(2, [][]byte{[]byte("late")}); err == nil {
		t.Error("what has ended takes datagrams")
	}
}

// talk connects, says something, and returns what comes back until the connection ends.
func talk(t *testing.T, to netip.AddrPort, say ...[]byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	for _, b := range say {
		conn.Write(b) // it may have been closed before the second
	}
	got, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("the connection of a stranger is kept for longer than %v", patience)
	}
	return got
}

func TestAStrangerHearsNotOneByte(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	eve := newNode(t, 3)
	eve.knows(b) // who does not know her
	boxOf := func(n, o *node) key.Box {
		box, err := wire.PeerBox(n.key, o.key.Public())
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	hello := wire.AppendGreeting(nil, boxOf(a, b), 1, wire.Greeting{Kind: wire.KindHello, Time: 1})
	changed := func(bit int) []byte {
		c := bytes.Clone(hello)
		c[bit/8] ^= 1 << (bit % 8)
		return c
	}
	for name, say := range map[string][]byte{
		"HTTP":                      []byte("GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: somebody who looks at everything\r\n\r\n"),
		"TLS":                       append([]byte{22, 3, 1, 2, 0}, make([]byte, 512)...),
		"zeros":                     make([]byte, 64),
		"her own key":               wire.AppendGreeting(nil, boxOf(eve, b), 3, wire.Greeting{Kind: wire.KindHello, Time: 2}),
		"her own key in a's name":   wire.AppendGreeting(nil, boxOf(eve, b), 1, wire.Greeting{Kind: wire.KindHello, Time: 2}),
		"a Confirm of a's":          wire.AppendGreeting(nil, boxOf(a, b), 1, wire.Greeting{Kind: wire.KindConfirm}),
		"a Welcome of a's":          wire.AppendGreeting(nil, boxOf(a, b), 1, wire.Greeting{Kind: wire.KindWelcome}),
		"a peer frame of a's":       wire.AppendPeer(nil, boxOf(a, b), 1, wire.Ping{Padding: 24}),
		"b's own words":             wire.AppendGreeting(nil, boxOf(b, a), 2, wire.Greeting{Kind: wire.KindHello, Time: 3}),
		"a changed Hello":           changed(400),
		"a Hello in b's name":       changed(8*7 + 1), // 1 becomes 3, 2 is two bits away
		"less than a Hello, slowly": hello[:63],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := talk(t, b.at, say); len(got) > 0 {
				t.Errorf("%d bytes came back: %x", len(got), got)
			}
		})
	}
	t.Run("and a peer does", func(t *testing.T) {
		if got := talk(t, b.at, hello, hello); len(got) != wire.GreetingSize {
			t.Errorf("a Hello is answered by %d bytes", len(got))
		}
		if got := talk(t, b.at, hello); len(got) > 0 {
			t.Errorf("said again, it is answered by %x", got)
		}
	})
}

func TestWhoSaysARecordedHelloGetsNoConnection(t *testing.T) {
	a, b := pair(t)
	// What a says to b passes through who records it.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var recorded bytes.Buffer
	go func() {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", b.at.String())
		if err != nil {
			return
		}
		go io.Copy(in, out)
		io.Copy(out, io.TeeReader(in, &recorded))
		in.Close()
		out.Close()
	}()
	if err := a.Dial(2, 0, "", []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}); err != nil {
		t.Fatal(err)
	}
	b.waits("a connection", func() bool { return len(b.up) == 1 })
	a.conns()[0].Close()
	b.waits("its end", func() bool { return len(b.up) == 0 })
	if recorded.Len() < 2*wire.GreetingSize {
		t.Fatalf("recorded were %d bytes", recorded.Len())
	}
	if got := talk(t, b.at, recorded.Bytes()); len(got) > 0 {
		t.Errorf("said again, it is answered by %x", got)
	}
	// And by who has begun anew and remembers nothing, with what says nothing to who cannot open it; then that is over.
	b.Close()
	b.begin()
	b.knows(a)
	b.listen(0)
	if got := talk(t, b.at, recorded.Bytes()); len(got) > wire.GreetingSize {
		t.Errorf("%d bytes came back", len(got))
	}
	if got := talk(t, b.at, recorded.Bytes()); len(got) > 0 {
		t.Errorf("the second time, %d bytes came back", len(got))
	}
	if len(b.conns()) > 0 {
		t.Error("who recorded is connected")
	}
}

func TestWhoOpensManyConnectionsAndSaysNothingEndsHisOwn(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	var held []net.Conn
	for range 3 * Strangers {
		conn, err := net.Dial("tcp", b.at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		held = append(held, conn)
	}
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil {
		t.Fatalf("a peer does not get through: %v", err)
	}
	b.Connector.mu.Lock()
	n := len(b.strangers)
	b.Connector.mu.Unlock()
	if n > Strangers {
		t.Errorf("%d are kept", n)
	}
	// All of them end, without a word.
	for _, conn := range held {
		conn.SetDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%x came back", got)
		} else if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Fatal("one is kept")
		}
	}
}

func TestOfTwoThatDialAtOnceOneConnectionStaysAndBothAgreeOnIt(t *testing.T) {
	for range 20 {
		a, b := pair(t)
		var both sync.WaitGroup
		both.Go(func() { a.Dial(2, 0, "", []netip.AddrPort{b.at}) })
		both.Go(func() { b.Dial(1, 0, "", []netip.AddrPort{a.at}) })
		both.Wait()
		one := func(n *node) func() bool { return func() bool { return len(n.up) == 1 && n.up[0].Err() == nil } }
		// A connection that is about to be closed may be seen first: what counts is how it ends.
		b.waits("one connection", one(b))
		for began := time.Now(); ; {
			if time.Since(began) > patience {
				t.Fatal("they do not agree")
			}
			a.waits("one connection", one(a))
			b.waits("one connection", one(b))
			x, y := a.conns(), b.conns()
			if len(x) != 1 || len(y) != 1 || x[0].Dialed == y[0].Dialed {
				continue
			}
			if x[0].SendTo(2, [][]byte{[]byte("hello")}) == nil {
				break
			}
		}
		b.waits("what the other said", func() bool { return b.got["1: hello"] > 0 })
		a.Close()
		b.Close()
	}
}

func TestTheHigherNumbersConnectionStays(t *testing.T) {
	a, b := pair(t) // 1 and 2
	if err := b.Dial(1, 0, "", []netip.AddrPort{a.at}); err != nil {
		t.Fatal(err)
	}
	a.waits("b's connection", func() bool { return len(a.up) == 1 })
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil { // is as good as done
		t.Fatal(err)
	}
	if x := a.conns(); len(x) != 1 || x[0].Dialed {
		t.Errorf("a has %d connections", len(x))
	}
	// Another link's is another matter.
	if err := a.Dial(2, 7, "", []netip.AddrPort{b.at}); err != nil || len(a.conns()) != 2 {
		t.Errorf("by another link: %v, %d connections", err, len(a.conns()))
	}
	for _, c := range a.conns() {
		c.Close()
	}
	a.waits("the ends", func() bool { return len(a.up) == 0 })
	b.waits("the ends", func() bool { return len(b.up) == 0 })
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil {
		t.Fatal(err)
	}
	b.waits("a's connection", func() bool { return len(b.up) == 1 })
	if err := b.Dial(1, 0, "", []netip.AddrPort{a.at}); err != nil {
		t.Fatal(err)
	}
	a.waits("b's in place of a's", func() bool { return len(a.up) == 1 && !a.up[0].Dialed })
	b.waits("b's in place of a's", func() bool { return len(b.up) == 1 && b.up[0].Dialed })
}

func TestWhoDialsAgainHasTheNewConnectionAlone(t *testing.T) {
	a, b := pair(t)
	for range 3 {
		if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil {
			t.Fatal(err)
		}
	}
	a.waits("one connection", func() bool { return len(a.up) == 1 && len(a.down) == 2 })
	b.waits("one connection", func() bool { return len(b.up) == 1 && len(b.down) == 2 })
}

func TestAPeerHasNoMoreConnectionsThanItMay(t *testing.T) {
	a, b := pair(t)
	for link := range weft.LinkID(2 * maxConns) {
		a.Dial(2, link, "", []netip.AddrPort{b.at})
	}
	if n := len(b.conns()); n > maxConns {
		t.Errorf("it has %d", n)
	}
}

func TestTheFirstAddressThatAnswersIsTaken(t *testing.T) {
	a, b := pair(t)
	eve := newNode(t, 3) // a stranger at one of the addresses
	eve.listen(0)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	began := time.Now()
	if err := a.Dial(2, 0, "", []netip.AddrPort{closed(t), mute.Addr().(*net.TCPAddr).AddrPort(), eve.at, b.at}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > greetTimeout {
		t.Errorf("it took %v", took)
	}
	if x := a.conns(); len(x) != 1 || x[0].Via.Addr != b.at {
		t.Errorf("connected is %+v", x)
	}
	if err := a.Dial(2, 1, "", []netip.AddrPort{closed(t), eve.at}); err == nil {
		t.Error("nobody is there, and it is connected")
	}
	if err := a.Dial(2, 1, "", nil); err == nil {
		t.Error("it is connected to nowhere")
	}
	if err := a.Dial(9, 1, "", []netip.AddrPort{b.at}); err == nil {
		t.Error("it is connected to nobody")
	}
}

func TestWhoIsNoPeerAnyMoreIsDisconnected(t *testing.T) {
	a, b := pair(t)
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil {
		t.Fatal(err)
	}
	b.waits("a connection", func() bool { return len(b.up) == 1 })
	b.knows()
	b.waits("its end", func() bool { return len(b.up) == 0 })
	a.waits("its end", func() bool { return len(a.up) == 0 })
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err == nil {
		t.Error("it is connected again")
	}
}

func TestClosingEndsEverything(t *testing.T) {
	a, b := pair(t)
	if err := a.Dial(2, 0, "", []netip.AddrPort{b.at}); err != nil {
		t.Fatal(err)
	}
	b.waits("a connection", func() bool { return len(b.up) == 1 })
	silent, err := net.Dial("tcp", b.at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b.Close() // returns
	if n := len(b.conns()); n != 0 {
		t.Errorf("%d are left", n)
	}
	if _, err := net.Dial("tcp", b.at.String()); err == nil {
		t.Error("it still listens")
	}
	if err := b.Listen(0, "", 0, false); err == nil {
		t.Error("it listens again")
	}
	if err := b.Dial(1, 0, "", []netip.AddrPort{a.at}); err == nil {
		t.Error("it dials")
	}
}

func TestTimesAreTakenOnceAndOldOnesNotAtAll(t *testing.T) {
	var r recent
	for i := range uint64(remembered) {
		if !r.take(1000 + 2*i) {
			t.Fatalf("%d is not taken", 1000+2*i)
		}
	}
	for _, c := range []struct {
		t  uint64
		ok bool
	}{{1000, false}, {1062, false}, {999, false}, {0, false}, {1001, true}, {1001, false}, {1002, false}, {5000, true}, {1003, true}, {1004, false}, {1003, false}} {
		if got := r.take(c.t); got != c.ok {
			t.Errorf("%d is taken: %v", c.t, got)
		}
	}
	if r.n != remembered || !slices.IsSorted(r.times[:]) {
		t.Errorf("remembered are %d: %v", r.n, r.times)
	}
}

func TestALinksListenerIsReplacedWhereItChanges(t *testing.T) {
	a := newNode(t, 1)
	a.listen(0)
	was := a.at
	if err := a.Listen(0, "", a.listeners[0].port, false); err != nil || !a.Listens(0) {
		t.Fatal(err)
	}
	a.Unlisten(func(l weft.LinkID) bool { return l != 0 })
	if a.Listens(0) {
		t.Error("it listens")
	}
	if conn, err := net.Dial("tcp", was.String()); err == nil {
		conn.Close()
		t.Error("there is somebody")
	}
	if err := a.Listen(1, "no-such-link0", 0, false); err == nil {
		t.Error("it listens at an interface that there is not")
	}
	busy, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := a.Listen(0, "", busy.Addr().(*net.TCPAddr).AddrPort().Port(), false); err == nil {
		t.Error("it listens at another's port")
	}
}

func TestAnAnswerToAnotherGreetingIsNone(t *testing.T) {
	a, b := newNode(t, 1), newNode(t, 2)
	a.knows(b)
	box, err := wire.PeerBox(b.key, a.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]wire.Greeting{
		"a Welcome that was said to another Hello": {Kind: wire.KindWelcome, Answers: wire.TxID{1}},
		"a Hello":   {Kind: wire.KindHello, Time: 1},
		"a Confirm": {Kind: wire.KindConfirm},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			io.ReadFull(conn, make([]byte, wire.GreetingSize))
			conn.Write(wire.AppendGreeting(nil, box, 2, answer))
			io.Copy(io.Discard, conn)
		}()
		if err := a.Dial(2, 0, "", []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}); err == nil || len(a.conns()) > 0 {
			t.Errorf("%s is taken for the answer", name)
		}
		l.Close()
	}
}
