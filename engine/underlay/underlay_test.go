package underlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/host"
)

// patience is how long a test waits for what must come over loopback on a busy machine.
const patience = 20 * time.Second

// A heard is one datagram that came.
type heard struct {
	link weft.LinkID
	from netip.AddrPort
	b    string
}

// recorder keeps what comes, run by run taken apart.
type recorder struct {
	mu    sync.Mutex
	all   []heard
	wake  chan struct{}
	calls int
}

func newRecorder() *recorder { return &recorder{wake: make(chan struct{}, 1)} }

func (r *recorder) receive(link weft.LinkID, reads []host.UDPRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	for _, m := range reads {
		for data := m.Data; len(data) > 0; {
			n := min(len(data), m.Segment)
			r.all = append(r.all, heard{link, m.From, string(data[:n])})
			data = data[n:]
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take waits until n datagrams have come, and takes them.
func (r *recorder) take(t testing.TB, n int) []heard {
	t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		if len(r.all) >= n {
			out := r.all
			r.all = nil
			r.mu.Unlock()
			return out
		}
		r.mu.Unlock()
		select {
		case <-r.wake:
		case <-timeout:
			t.Fatalf("%d datagrams did not come within %v: %d did", n, patience, len(r.all))
		}
	}
}

// open opens sockets that receive.
func open(t testing.TB, cfg Config) (*Sockets, *recorder) {
	t.Helper()
	r := newRecorder()
	cfg.Receive = r.receive
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.Start()
	return s, r
}

var loopback = netip.MustParseAddr("127.0.0.1")

// listener is a socket of a test.
func listener(t testing.TB, at string) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), 0)))
	if err != nil {
		t.Skipf("no socket on %s: %v", at, err)
	}
	t.Cleanup(func() { c.Close() })
	return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// hears waits for one datagram at a test's socket, and returns from where it came.
func hears(t testing.TB, c *net.UDPConn, want string) netip.AddrPort {
	t.Helper()
	buf := make([]byte, 1<<16)
	c.SetReadDeadline(time.Now().Add(patience))
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != want {
		t.Fatalf("came %q (%v), not %q", buf[:min(n, 60)], err, want)
	}
	return from
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// batch sends datagrams as the engine does.
func batch(t testing.TB, s *Sockets, link weft.LinkID, to netip.AddrPort, packets ...[]byte) {
	t.Helper()
	w := host.NewUDPWriter()
	d := must(s.Dest(link, to))(t)
	for _, b := range packets {
		w.Add(d, b, len(b))
	}
	if c := w.Flush(); c.Datagrams != len(packets) {
		t.Fatalf("sent %+v of %d", c, len(packets))
	}
}

func TestPacketsReachTheirAddressWhateverFamilyWasSentToBefore(t *testing.T) {
	s, _ := open(t, Config{})
	receivers := map[string]*net.UDPConn{}
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		receivers[at], _ = listener(t, at)
	}
	for round := range 20 {
		for at, c := range receivers {
			to := c.LocalAddr().(*net.UDPAddr).AddrPort()
			for _, n := range []int{1, 3} {
				var packets [][]byte
				for i := range n {
					packets = append(packets, fmt.Appendf(nil, "%s %d %d", at, round, i))
				}
				if n == 1 {
					if err := s.WriteTo(0, to, packets[0], 0); err != nil {
						t.Fatalf("to %s: %v", at, err)
					}
				} else {
					batch(t, s, 0, to, packets...)
				}
				for _, want := range packets {
					if from := hears(t, c, string(want)); from.Port() != s.Port() {
						t.Fatalf("it came from port %d, not %d", from.Port(), s.Port())
					}
				}
			}
		}
	}
}

func TestWhatManySendersSendIsReceivedByAllReaders(t *testing.T) {
	s, r := open(t, Config{Shards: 4})
	if st := s.Status(); st[0].Sockets != 4 || st[0].Port != s.Port() || st[0].Link != 0 {
		t.Fatalf("%+v", st)
	}
	const senders = 32
	want := map[string]netip.AddrPort{}
	for i := range senders {
		c, at := listener(t, "127.0.0.1")
		b := fmt.Sprint("packet ", i)
		want[b] = at
		c.WriteToUDPAddrPort([]byte(b), netip.AddrPortFrom(loopback, s.Port()))
	}
	for _, h := range r.take(t, senders) {
		if h.link != 0 || want[h.b] != h.from {
			t.Errorf("%q came from %v by link %d", h.b, h.from, h.link)
		}
	}
	shards := map[*socket]int{}
	for _, at := range want {
		shards[must(s.socket(0, at))(t)]++
	}
	if len(shards) < 3 {
		t.Errorf("what is sent to %d addresses leaves by %d of 4 sockets", senders, len(shards))
	}
}

func TestNothingIsReceivedBeforeTheStart(t *testing.T) {
	r := newRecorder()
	s, err := Open(Config{Receive: r.receive})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	links, ports, err := s.Spares(1, false)
	if err != nil {
		t.Fatal(err)
	}
	s.Carry(links[0]) // which may be said before, too
	c, _ := listener(t, "127.0.0.1")
	for _, port := range []uint16{s.Port(), ports[0]} {
		c.WriteToUDPAddrPort([]byte("early"), netip.AddrPortFrom(loopback, port))
	}
	if r.calls != 0 {
		t.Error("something was received")
	}
	s.Start()
	s.Start() // once is enough
	got := r.take(t, 2)
	if got[0].link == got[1].link {
		t.Errorf("%+v", got)
	}
}

func TestAPortThatIsTakenIsSaidSo(t *testing.T) {
	s, _ := open(t, Config{Shards: 2})
	_, err := Open(Config{Port: s.Port(), Receive: func(weft.LinkID, []host.UDPRead) {}})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "is in use by another program: stop that one or choose another port") {
		t.Errorf("opening it twice: %v", err)
	}
	other, _ := open(t, Config{Port: s.Port(), AnyPortIfTaken: true})
	if other.Port() == s.Port() || other.Port() == 0 {
		t.Errorf("the second has port %d", other.Port())
	}
	// One family is enough.
	six, err := net.ListenUDP("udp6", nil)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer six.Close()
	if _, err := Open(Config{Port: six.LocalAddr().(*net.UDPAddr).AddrPort().Port(), Receive: func(weft.LinkID, []host.UDPRead) {}}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken in IPv6: %v", err)
	}
}

// spareOf opens one spare socket.
func spareOf(t testing.TB, s *Sockets) (weft.LinkID, netip.AddrPort) {
	t.Helper()
	links, ports, err := s.Spares(1, false)
	if err != nil || len(links) != 1 || len(ports) != 1 {
		t.Fatalf("%v, %v, %v", links, ports, err)
	}
	return links[0], netip.AddrPortFrom(loopback, ports[0])
}

func TestWhatComesToASpareSocketComesByItsLink(t *testing.T) {
	s, r := open(t, Config{})
	other, from := listener(t, "127.0.0.1")
	links := map[weft.LinkID]netip.AddrPort{}
	for range 3 {
		link, addr := spareOf(t, s)
		if link < FirstSpare || links[link].IsValid() {
			t.Fatalf("link %#x is given twice, or is no spare one", link)
		}
		links[link] = addr
	}
	for _, carrying := range []bool{false, true} {
		for link, addr := range links {
			if carrying {
				s.Carry(link)
				s.Carry(link)
			}
			other.WriteToUDPAddrPort([]byte("hello"), addr)
			if got := r.take(t, 1); len(got) != 1 || got[0] != (heard{link, from, "hello"}) {
				t.Fatalf("sent to link %#x: got %+v", link, got)
			}
			for _, ttl := range []uint8{0, 3} {
				if err := s.WriteTo(link, from, []byte("back"), ttl); err != nil {
					t.Fatal(err)
				}
				if at := hears(t, other, "back"); at.Port() != addr.Port() {
					t.Errorf("it came from %v, not %v", at, addr)
				}
			}
		}
	}
	for link := range links {
		s.CloseSpare(link)
		s.CloseSpare(link) // which is none to close any more
		if err := s.WriteTo(link, from, []byte("x"), 0); !errors.Is(err, ErrNoWay) {
			t.Errorf("by a closed link: %v", err)
		}
		if _, err := s.Dest(link, from); !errors.Is(err, ErrNoWay) {
			t.Errorf("by a closed link: %v", err)
		}
	}
	if s.Spared() != 0 {
		t.Errorf("%d sockets are left", s.Spared())
	}
}

func TestASpareSocketThatIsARouteCarriesBatchesBothWays(t *testing.T) {
	a, _ := open(t, Config{})
	b, heardByB := open(t, Config{})
	aLink, aAddr := spareOf(t, a)
	bLink, bAddr := spareOf(t, b)
	const packets = 50
	var out [][]byte
	for i := range packets {
		out = append(out, append(bytes.Repeat([]byte{byte(i)}, 1000), byte(i)))
	}
	b.Carry(bLink)
	before := a.Generation()
	batch(t, a, aLink, bAddr, out...) // which says that it carries by itself
	got := heardByB.take(t, packets)
	for i, h := range got {
		if h.link != bLink || h.from != aAddr || h.b != string(out[i]) {
			t.Fatalf("packet %d is %d bytes from %v by link %#x", i, len(h.b), h.from, h.link)
		}
	}
	if heardByB.calls >= packets/2 {
		t.Errorf("%d packets came in %d calls: no runs", packets, heardByB.calls)
	}
	d := must(a.Dest(aLink, bAddr))(t)
	a.CloseSpare(aLink)
	if a.Generation() == before {
		t.Error("a destination became useless, and nothing says so")
	}
	w := host.NewUDPWriter()
	if w.Add(d, out[0], len(out[0])); w.Flush().Failed != 1 {
		t.Error("sending by a closed socket did not fail")
	}
	before = a.Generation()
	light, _ := spareOf(t, a)
	a.CloseSpare(light)
	if a.Generation() != before {
		t.Error("closing a socket that nothing goes by makes all destinations to be fetched anew")
	}
}

func TestASpareSocketIsOfOneAddressFamily(t *testing.T) {
	s, _ := open(t, Config{})
	links, ports, err := s.Spares(1, true)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	_, four := listener(t, "127.0.0.1")
	if err := s.WriteTo(links[0], four, []byte("x"), 0); !errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Errorf("to an IPv4 address: %v", err)
	}
	c, six := listener(t, "::1")
	if err := s.WriteTo(links[0], six, []byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	if from := hears(t, c, "x"); from.Port() != ports[0] {
		t.Errorf("it came from %v, not port %d", from, ports[0])
	}
}

func TestTwoHundredAndFiftySixSocketsAreCheap(t *testing.T) {
	s, r := open(t, Config{})
	const count = 256
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	links, ports, err := s.Spares(count, false)
	if err != nil || len(links) != count || len(ports) != count {
		t.Fatalf("%d links, %d ports, %v", len(links), len(ports), err)
	}
	other, _ := listener(t, "127.0.0.1")
	for i, port := range ports {
		other.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(i)), netip.AddrPortFrom(loopback, port))
	}
	for _, h := range r.take(t, count) {
		if i := binary.BigEndian.Uint32([]byte(h.b)); links[i] != h.link {
			t.Fatalf("what went to %#x came by %#x", links[i], h.link)
		}
	}
	runtime.ReadMemStats(&after)
	each := int(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse) / count
	t.Logf("%d sockets take %d bytes each", count, each)
	if each > 16<<10 {
		t.Errorf("a socket takes %d bytes of memory", each)
	}
	for _, link := range links {
		s.CloseSpare(link)
	}
	deadline := time.After(patience)
	for tick := time.NewTicker(2 * time.Millisecond); runtime.NumGoroutine() > goroutines; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("their goroutines do not end")
		}
	}
}

func TestSpareSocketsAreBoundedAndEndWithTheOthers(t *testing.T) {
	s, _ := open(t, Config{})
	links, _, err := s.Spares(MaxSpares+1, false)
	if errors.Is(err, syscall.EMFILE) {
		t.Skipf("this process may not have %d sockets: %v", MaxSpares, err)
	}
	if !errors.Is(err, ErrTooManySockets) || len(links) != MaxSpares || s.Spared() != MaxSpares {
		t.Fatalf("%d sockets, %v", len(links), err)
	}
	s.Close() // which waits for their goroutines
	s.Close()
	if _, _, err := s.Spares(1, false); !errors.Is(err, net.ErrClosed) || s.Spared() != 0 {
		t.Errorf("after Close: %d sockets, %v", s.Spared(), err)
	}
	if err := s.WriteTo(0, netip.AddrPortFrom(loopback, 9), []byte("x"), 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestNumbersOfLinksComeRoundAndAreNotGivenTwice(t *testing.T) {
	s, _ := open(t, Config{})
	first, _ := spareOf(t, s)
	s.last = 0xffff
	second, _ := spareOf(t, s)
	if second == first || second < FirstSpare {
		t.Errorf("%#x and %#x", first, second)
	}
}

func TestADestinationIsTheSameEachTimeAndTheyAreBounded(t *testing.T) {
	s, _ := open(t, Config{Shards: 1})
	at := netip.MustParseAddrPort("127.0.0.1:9")
	first := must(s.Dest(0, at))(t)
	if mapped := must(s.Dest(0, netip.MustParseAddrPort("[::ffff:127.0.0.1]:9")))(t); mapped != first {
		t.Error("one address has two destinations")
	}
	for i := range 2 * maxDests {
		must(s.Dest(0, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 9)))(t)
	}
	if n := len(s.shared.four[0].dests); n > maxDests {
		t.Errorf("%d destinations are kept", n)
	}
	if _, err := s.Dest(0, netip.AddrPort{}); !errors.Is(err, ErrNoWay) {
		t.Errorf("to no address: %v", err)
	}
	if _, err := s.Dest(7, at); !errors.Is(err, ErrNoWay) {
		t.Errorf("by a link that is not there: %v", err)
	}
}

func TestNothingIsAllocatedPerPacket(t *testing.T) {
	calls := make(chan int, 1)
	s, err := Open(Config{Receive: func(_ weft.LinkID, reads []host.UDPRead) { calls <- len(reads) }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Start()
	link, spare := spareOf(t, s)
	heavy, carrier := spareOf(t, s)
	s.Carry(heavy)
	_, to := listener(t, "127.0.0.1") // nobody reads, and the kernel drops
	b := make([]byte, 1440)
	shared := netip.AddrPortFrom(loopback, s.Port())
	w := host.NewUDPWriter()
	receive := func(at netip.AddrPort) func() {
		return func() {
			s.WriteTo(0, at, b, 0)
			<-calls
		}
	}
	for what, f := range map[string]func(){
		"a destination":                       func() { s.Dest(0, to) },
		"a spare socket's destination":        func() { s.Dest(heavy, to) },
		"sending a datagram":                  func() { s.WriteTo(0, to, b, 0) },
		"sending by a spare socket":           func() { s.WriteTo(link, to, b, 0) },
		"sending with a time to live":         func() { s.WriteTo(link, to, b, 3) },
		"sending a batch":                     func() { d, _ := s.Dest(0, to); w.Add(d, b, len(b)); w.Flush() },
		"receiving":                           receive(shared),
		"receiving by a spare socket":         receive(spare),
		"receiving by a socket that is route": receive(carrier),
	} {
		f()
		if a := testing.AllocsPerRun(200, f); a != 0 {
			t.Errorf("%s allocates %v times", what, a)
		}
	}
}

func TestSparesComeGoAndCarryWhilePacketsFlow(t *testing.T) {
	s, r := open(t, Config{})
	other, _ := listener(t, "127.0.0.1")
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for range 20 {
				links, ports, err := s.Spares(4, false)
				if err != nil {
					t.Error(err)
					return
				}
				for i, link := range links {
					other.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(loopback, ports[i]))
					if i%2 == worker%2 {
						s.Carry(link)
					}
					s.Status()
					s.Generation()
				}
				for _, link := range slices.Backward(links) {
					s.CloseSpare(link)
				}
			}
		})
	}
	wg.Wait()
	if s.Spared() != 0 {
		t.Errorf("%d are left", s.Spared())
	}
	other.WriteToUDPAddrPort([]byte("last"), netip.AddrPortFrom(loopback, s.Port()))
	for {
		got := r.take(t, 1)
		if got[len(got)-1].b == "last" {
			return
		}
	}
}

func BenchmarkDest(b *testing.B) {
	s, _ := open(b, Config{})
	to := netip.MustParseAddrPort("127.0.0.1:9")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Dest(0, to)
		}
	})
}
