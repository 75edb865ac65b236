package underlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/host"
)

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

func TestADestinationIsAskedForWhileItsSocketBeginsToCarry(t *testing.T) {
	s, _ := open(t, Config{})
	other, to := listener(t, "127.0.0.1")
	link, addr := spareOf(t, s)
	x := s.find(link).sockets()[0]
	x.growing.Lock() // as who makes it larger holds it
	var wg sync.WaitGroup
	wg.Go(func() { s.Carry(link) })
	for !x.carries.Load() {
		runtime.Gosched()
	}
	asked := make(chan struct{})
	wg.Go(func() {
		close(asked)
		batch(t, s, link, to, []byte("a"), []byte("b"))
	})
	<-asked
	time.Sleep(10 * time.Millisecond) // it is in the middle of it, or was through too early
	x.growing.Unlock()
	wg.Wait()
	for _, want := range []string{"a", "b"} {
		if at := hears(t, other, want); at.Port() != addr.Port() {
			t.Errorf("it came from %v, not %v", at, addr)
		}
	}
}
