package netstack

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"

	"weft"
	"weft/engine"
	"weft/key"
	"weft/wire"
)

type deaf struct{}

func (deaf) HandleDatagram(weft.LinkID, netip.AddrPort, wire.Class, []byte) {}
func (deaf) HandleRelayed(weft.Via, weft.NodeID, []byte)                    {}
func (deaf) Active(weft.NodeID)                                             {}
func (deaf) Silent(weft.NodeID, weft.Via, string)                           {}

// tunnelled joins two stacks by two engines over loopback.
func tunnelled(t testing.TB) (a, b *Netstack) {
	t.Helper()
	devA, a := newStack(t, addrA4, addrA6)
	devB, b := newStack(t, addrB4, addrB6)
	keys := []key.NodePrivate{key.NewPrivate[key.Node](), key.NewPrivate[key.Node]()}
	addrs := [][]netip.Addr{{addrA4, addrA6}, {addrB4, addrB6}}
	engines := make([]*engine.Engine, 2)
	for i, dev := range []engine.Device{devA, devB} {
		e, err := engine.New(engine.Config{
			Key: keys[i], Self: weft.NodeID(i + 1), Device: dev, Handler: deaf{}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		engines[i] = e
	}
	for i, e := range engines {
		other := 1 - i
		p := engine.Peer{ID: weft.NodeID(other + 1), Key: keys[other].Public()}
		for _, addr := range addrs[other] {
			p.Allowed = append(p.Allowed, netip.PrefixFrom(addr, addr.BitLen()))
		}
		if err := e.SetPeers([]engine.Peer{p}); err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), engines[other].Port())
		e.Learn(p.ID, to)
		e.SetRoute(p.ID, weft.DirectVia(0, to))
		if err := e.Up(); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func TestAWebPageIsFetchedThroughTwoEnginesWithoutAnInterface(t *testing.T) {
	a, _ := tunnelled(t)
	page := make([]byte, 2<<20)
	rand.Read(page)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })}
	go web.Serve(l)
	defer web.Close()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return a.DialContext(ctx, network, netip.MustParseAddrPort(addr))
		},
	}}
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	var wg sync.WaitGroup
	for _, to := range []netip.Addr{addrB4, addrB6, addrB4} {
		wg.Go(func() {
			res, err := client.Get("http://" + netip.AddrPortFrom(to, port).String() + "/")
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, page) {
				t.Errorf("from %v: %d of %d bytes, %v", to, len(got), len(page), err)
			}
		})
	}
	wg.Wait()
}

func benchmarkStream(b *testing.B, from *Netstack) {
	port := serve(b, func(c net.Conn) {
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, c, make([]byte, 256<<10))
	})
	c, err := dial(b, from, "tcp", addrB4, port)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTCPBetweenTwoStacks(b *testing.B) {
	from, _ := wired(b)
	benchmarkStream(b, from)
}

func BenchmarkTCPThroughTwoEngines(b *testing.B) {
	from, _ := tunnelled(b)
	benchmarkStream(b, from)
}
