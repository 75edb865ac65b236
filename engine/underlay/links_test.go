package underlay

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft"
	"weft/host"
)

// A yard is two networks of the test's own: here, with the interfaces up0 and up1, and there, with their other ends. Here's
// namespace is that of the test's thread: no subtests.
type yard struct {
	t     *testing.T
	there chan func() // run there
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{t: t, there: make(chan func())}
	var thread int
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its network with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		thread = unix.Gettid()
		failed <- err
		for f := range y.there {
			f()
		}
	}()
	err := <-failed
	t.Cleanup(func() { close(y.there) })
	if err == nil {
		runtime.LockOSThread()
		err = unix.Unshare(unix.CLONE_NEWNET)
	}
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs root to create network namespaces: %v", err)
	}
	y.check(err)
	lo, err := netlink.LinkByName("lo")
	y.check(err)
	y.check(netlink.LinkSetUp(lo))
	y.cable("up0", "10.1.0", thread)
	y.cable("up1", "10.2.0", thread)
	return y
}

func (y *yard) check(err error) {
	if err != nil {
		y.t.Helper()
		y.t.Fatal(err)
	}
}

// do runs f there.
func (y *yard) do(f func() error) {
	y.t.Helper()
	result := make(chan error)
	y.there <- func() { result <- f() }
	y.check(<-result)
}

// cable joins the two networks: .1 is here, .2 there.
func (y *yard) cable(name, prefix string, thread int) {
	y.t.Helper()
	y.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "x"}))
	far, err := netlink.LinkByName(name + "x")
	y.check(err)
	y.check(netlink.LinkSetNsPid(far, thread))
	up := func(name, addr string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
	}
	y.check(up(name, prefix+".1/24"))
	y.do(func() error { return up(name+"x", prefix+".2/24") })
}

// listen opens a socket there.
func (y *yard) listen(at string) (c *net.UDPConn) {
	y.t.Helper()
	y.do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	})
	y.t.Cleanup(func() { c.Close() })
	return c
}

// link is an interface here as a link.
func (y *yard) link(id weft.LinkID, name string) Link {
	y.t.Helper()
	ifi, err := net.InterfaceByName(name)
	y.check(err)
	return Link{ID: id, Device: name, Index: ifi.Index}
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestALinkSendsByItsInterfaceWhateverTheRoutesSayAndTakesWhatComesByIt(t *testing.T) {
	y := newYard(t)
	s, r := open(t, Config{Shards: 2})
	y.check(s.SetLinks([]Link{y.link(1, "up0"), y.link(2, "up1")}))
	if s.LinkPort(1) != s.Port() || s.LinkPort(2) != s.Port() || s.LinkPort(3) != 0 {
		t.Fatalf("ports %d, %d, and %d of all", s.LinkPort(1), s.LinkPort(2), s.Port())
	}
	// There, 10.1.0.2 answers on both cables (an address is the machine's), so a packet to it by up1 arrives.
	c := y.listen("0.0.0.0:7000")
	for _, x := range []struct {
		link weft.LinkID
		to   string
		from string
	}{
		{0, "10.1.0.2:7000", "10.1.0.1"}, {0, "10.2.0.2:7000", "10.2.0.1"}, // by the routes
		{1, "10.1.0.2:7000", "10.1.0.1"}, {2, "10.2.0.2:7000", "10.2.0.1"},
		{2, "10.1.0.2:7000", "10.2.0.1"}, // against them
	} {
		for range 3 { // a datagram, one with a time to live, a batch
			y.check(s.WriteTo(x.link, ap(x.to), []byte("single"), 0))
			y.check(s.WriteTo(x.link, ap(x.to), []byte("hop"), 1))
			batch(t, s, x.link, ap(x.to), []byte("a"), []byte("b"))
			for _, want := range []string{"single", "hop", "a", "b"} {
				if from := hears(t, c, want); from != netip.AddrPortFrom(netip.MustParseAddr(x.from), s.Port()) {
					t.Errorf("%q to %s by link %d came from %v", want, x.to, x.link, from)
				}
			}
		}
	}
	for _, x := range []struct {
		at   string
		link weft.LinkID
	}{{"10.1.0.1", 1}, {"10.2.0.1", 2}} {
		if _, err := c.WriteToUDPAddrPort([]byte("in"), netip.AddrPortFrom(netip.MustParseAddr(x.at), s.Port())); err != nil {
			t.Fatal(err)
		}
		if got := r.take(t, 1); got[0].link != x.link {
			t.Errorf("what came to %s came by link %d", x.at, got[0].link)
		}
	}
	// What comes by no link is link 0's.
	self, _ := listener(t, "127.0.0.1")
	self.WriteToUDPAddrPort([]byte("in"), netip.AddrPortFrom(loopback, s.Port()))
	if got := r.take(t, 1); got[0].link != 0 {
		t.Errorf("what came by the loopback interface came by link %d", got[0].link)
	}
}

func TestLinksComeAndGoAndThoseThatStayAreNotTouched(t *testing.T) {
	y := newYard(t)
	s, r := open(t, Config{Shards: 1})
	one, two := y.link(1, "up0"), y.link(2, "up1")
	c := y.listen("0.0.0.0:7000")
	arrivesBy := func(link weft.LinkID) {
		t.Helper()
		c.WriteToUDPAddrPort([]byte("in"), netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), s.Port()))
		if got := r.take(t, 1); got[0].link != link {
			t.Errorf("it came by link %d and not %d", got[0].link, link)
		}
	}
	arrivesBy(0)
	y.check(s.SetLinks([]Link{one}))
	first, gen := s.find(1), s.Generation()
	y.check(s.SetLinks([]Link{one, two}))
	y.check(s.SetLinks([]Link{two, one}))
	if s.find(1) != first || s.Generation() != gen {
		t.Error("a link that stays was opened anew")
	}
	arrivesBy(1)
	type row struct {
		Link      weft.LinkID
		Interface string
		IPv6      bool
	}
	var rows []row
	for _, st := range s.Status() {
		rows = append(rows, row{st.Link, st.Interface, st.IPv6})
		if st.Port != s.Port() || st.Sockets != 1 || st.ReceiveBuffer < 100<<10 || st.SendBuffer > 2*sendBuffer || st.SendBuffer == 0 {
			t.Errorf("%+v", st)
		}
	}
	want := []row{{0, "", false}, {0, "", true}, {1, "up0", false}, {1, "up0", true}, {2, "up1", false}, {2, "up1", true}}
	if d := cmp.Diff(want, rows); d != "" {
		t.Error(d)
	}
	d := must(s.Dest(1, ap("10.1.0.2:7000")))(t)
	y.check(s.SetLinks([]Link{two}))
	if s.Generation() == gen {
		t.Error("a destination became useless, and nothing says so")
	}
	w := host.NewUDPWriter()
	if w.Add(d, []byte("x"), 1); w.Flush().Failed != 1 {
		t.Error("sending by a link that is gone did not fail")
	}
	if err := s.WriteTo(1, ap("10.1.0.2:7000"), []byte("x"), 0); !errors.Is(err, ErrNoWay) {
		t.Errorf("by a link that is gone: %v", err)
	}
	arrivesBy(0)

	// Another interface of the same name is another link, even under the same number.
	before := s.find(2)
	y.check(netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up1", Index: two.Index}}))
	y.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up1"}, PeerName: "other"}))
	y.check(s.SetLinks([]Link{y.link(2, "up1")}))
	if s.find(2) == before || s.find(2) == nil {
		t.Error("the sockets are still those of the interface that is gone")
	}
	y.check(s.SetLinks(nil))
	if n := len(s.Status()); n != 2 {
		t.Errorf("%d socket groups are left", n)
	}
}

func TestALinkThatCannotBeOpenedIsSaidSoAndTheOthersAre(t *testing.T) {
	y := newYard(t)
	s, _ := open(t, Config{Shards: 2})
	err := s.SetLinks([]Link{{ID: 1, Device: "nosuch"}, y.link(2, "up1"), {ID: FirstSpare, Device: "up0"}})
	if err == nil || !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "there is no interface nosuch now") ||
		!strings.Contains(err.Error(), "32768 is no number of a link") {
		t.Errorf("%v", err)
	}
	if s.LinkPort(2) == 0 || s.LinkPort(1) != 0 {
		t.Error("the link that could be opened was not")
	}
	// The port may be another program's on that interface.
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(ap("10.1.0.1:0")))
	y.check(err)
	defer c.Close()
	other, err := Open(Config{Receive: func(*Incoming) {}, Shards: 1})
	y.check(err)
	defer other.Close()
	other.port = c.LocalAddr().(*net.UDPAddr).AddrPort().Port() // as if it had been free but for that
	y.check(other.SetLinks([]Link{y.link(1, "up0")}))
	if p := other.LinkPort(1); p == 0 || p == other.port {
		t.Errorf("the link has port %d", p)
	}
}

func TestAfterTheEndThereAreNoLinks(t *testing.T) {
	y := newYard(t)
	s, _ := open(t, Config{})
	y.check(s.SetLinks([]Link{y.link(1, "up0")}))
	s.Close()
	y.check(s.SetLinks([]Link{y.link(1, "up0")}))
	if err := s.WriteTo(1, ap("10.1.0.2:7000"), []byte("x"), 0); !errors.Is(err, ErrNoWay) {
		t.Errorf("%v", err)
	}
}

func TestASpareSocketOfALinkIsBoundToItsInterface(t *testing.T) {
	y := newYard(t)
	s, r := open(t, Config{})
	y.check(s.SetLinks([]Link{y.link(2, "up1")}))
	c := y.listen("0.0.0.0:7000")
	links, ports, err := s.SparesOn(2, 2, false)
	y.check(err)
	for i, link := range links {
		batch(t, s, link, ap("10.1.0.2:7000"), []byte("a"), []byte("b")) // against the routes
		for _, want := range []string{"a", "b"} {
			if from := hears(t, c, want); from != netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), ports[i]) {
				t.Errorf("it came from %v", from)
			}
		}
		c.WriteToUDPAddrPort([]byte("in"), netip.AddrPortFrom(netip.MustParseAddr("10.2.0.1"), ports[i]))
		if got := r.take(t, 1); got[0].link != link {
			t.Errorf("it came by link %#x", got[0].link)
		}
		if ports[i] == s.Port() {
			t.Error("it has the port of the others")
		}
	}
	if len(s.Status()) != 4 {
		t.Errorf("%+v", s.Status())
	}
	y.check(s.SetLinks(nil)) // which leaves spare sockets to whom they belong to
	y.check(s.WriteTo(links[0], ap("10.1.0.2:7000"), []byte("x"), 0))
	if _, _, err := s.SparesOn(2, 1, false); !errors.Is(err, ErrNoWay) {
		t.Errorf("by a link that is not there: %v", err)
	}
}
