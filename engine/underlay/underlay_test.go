package underlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
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

// each has what came taken socket by socket.
func each(f func(link weft.LinkID, reads []host.UDPRead)) func(*Incoming) {
	return func(in *Incoming) {
		for reads := in.Next(); len(reads) > 0; reads = in.Next() {
			link, _ := in.Link()
			f(link, reads)
		}
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
	cfg.Receive = each(r.receive)
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

func TestReadsSayForHowLongTheyLayOnceItIsAsked(t *testing.T) {
	const nap = 50 * time.Millisecond
	lay := make(chan time.Duration, 16)
	s, err := Open(Config{Receive: each(func(_ weft.LinkID, reads []host.UDPRead) {
		for i := range reads {
			lay <- reads[i].Unread
		}
		time.Sleep(nap) // what comes now lies
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Start()
	to := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	out, err := net.Dial("udp4", to(s.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	second := func(c net.Conn) (d time.Duration) {
		for range 2 { // while the first is worked on
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(nap / 5)
		}
		for range 2 {
			select {
			case d = <-lay:
			case <-time.After(patience):
				t.Fatal("it did not come")
			}
		}
		time.Sleep(nap)
		return d
	}
	if d := second(out); d != 0 {
		t.Errorf("nobody asked, and it says %v", d)
	}
	says := func(c net.Conn) (d time.Duration) {
		for range 20 { // the kernel begins some time after it was asked, and a spare socket's reader some time after it carries
			if d = second(c); d >= nap/4 {
				break
			}
		}
		return d
	}
	s.Stamp()
	if d := says(out); d < nap/4 || d > patience {
		t.Errorf("a datagram that lay while another was worked on says %v", d)
	}
	links, ports, err := s.Spares(1, false)
	if err != nil {
		t.Fatal(err)
	}
	s.Carry(links[0])
	late, err := net.Dial("udp4", to(ports[0]).String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if d := says(late); d < nap/4 || d > patience {
		t.Errorf("by a socket that came later: %v", d)
	}
}

func TestNothingIsReceivedBeforeTheStart(t *testing.T) {
	r := newRecorder()
	s, err := Open(Config{Receive: each(r.receive)})
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
	_, err := Open(Config{Port: s.Port(), Receive: func(*Incoming) {}})
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
	if _, err := Open(Config{Port: six.LocalAddr().(*net.UDPAddr).AddrPort().Port(), Receive: func(*Incoming) {}}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken in IPv6: %v", err)
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
	s, err := Open(Config{Receive: each(func(_ weft.LinkID, reads []host.UDPRead) { calls <- len(reads) })})
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
