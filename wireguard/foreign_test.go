package wireguard

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
)

// A wire is wireguard-go's network: two channels.
type wire struct {
	in, out chan []byte
	closed  chan struct{}
}

func (w *wire) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	w.closed = make(chan struct{})
	closed := w.closed
	return []conn.ReceiveFunc{func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		select {
		case b := <-w.in:
			sizes[0], eps[0] = copy(bufs[0], b), &conn.StdNetEndpoint{AddrPort: here}
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}}, port, nil
}

func (w *wire) Close() error {
	if w.closed != nil {
		close(w.closed)
		w.closed = nil
	}
	return nil
}

func (w *wire) Send(bufs [][]byte, _ conn.Endpoint) error {
	for _, b := range bufs {
		select {
		case w.out <- bytes.Clone(b):
		default:
			return errors.New("full")
		}
	}
	return nil
}

func (w *wire) SetMark(uint32) error { return nil }
func (w *wire) BatchSize() int       { return 1 }
func (w *wire) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return &conn.StdNetEndpoint{AddrPort: a}, err
}

// A foreign is wireguard-go, and an end of ours with it.
type foreign struct {
	t    *testing.T
	wire *wire
	tun  *tuntest.ChannelTUN
	ours *end
}

func random(b []byte) { rand.Read(b) }

func newForeign(t *testing.T, psk bool) *foreign {
	f := &foreign{t: t, wire: &wire{in: make(chan []byte, 256), out: make(chan []byte, 256)}, tun: tuntest.NewChannelTUN()}
	mine, theirs, shared := newKey(random), newKey(random), Key{}
	if psk {
		random(shared[:])
	}
	mp, tp := publicOf(genuine, &mine), publicOf(genuine, &theirs)
	dev := device.NewDevice(f.tun.TUN(), f.wire, device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(dev.Close)
	if err := dev.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=1\npublic_key=%s\npreshared_key=%s\nendpoint=%s\nallowed_ip=10.0.0.1/32\n",
		hex.EncodeToString(theirs[:]), hex.EncodeToString(mp[:]), hex.EncodeToString(shared[:]), here)); err != nil {
		t.Fatal(err)
	}
	if err := dev.Up(); err != nil {
		t.Fatal(err)
	}
	e, err := newEnd("ours", remembered, mine, PeerConfig{Public: tp, PSK: shared}, random)
	if err != nil {
		t.Fatal(err)
	}
	e.send = func(msg []byte) { f.wire.in <- bytes.Clone(msg) }
	f.ours = e
	return f
}

// until runs our end until something is so.
func (f *foreign) until(what string, so func() bool) {
	f.t.Helper()
	limit := time.After(10 * time.Second)
	for !so() {
		select {
		case msg := <-f.wire.out:
			f.ours.take(time.Now(), msg)
		case <-time.After(time.Millisecond):
		case <-limit:
			f.t.Fatalf("not within 10 s: %s; errors %v", what, f.ours.errs)
		}
	}
}

// fromForeign has a packet sent by wireguard-go and waits for it here.
func (f *foreign) fromForeign(i int) {
	f.t.Helper()
	b := tuntest.Ping(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	f.tun.Outbound <- b
	have := len(f.ours.got)
	f.until(fmt.Sprintf("packet %d of wireguard-go's", i), func() bool { return len(f.ours.got) > have })
	if got := f.ours.got[have]; !bytes.HasPrefix(got, b) {
		f.t.Errorf("packet %d arrived as %x, sent as %x", i, got, b)
	}
}

// fromUs sends a packet and waits for it at wireguard-go's device.
func (f *foreign) fromUs(i int) {
	f.t.Helper()
	b := tuntest.Ping(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"))
	f.ours.packet(time.Now(), b)
	var got []byte
	f.until(fmt.Sprintf("packet %d of ours", i), func() bool {
		select {
		case got = <-f.tun.Inbound:
			return true
		default:
			return false
		}
	})
	if !bytes.Equal(got, b) {
		f.t.Errorf("packet %d arrived as %x, sent as %x", i, got, b)
	}
}

func TestOurHandshakeIsWireguardGos(t *testing.T) {
	for _, psk := range []bool{false, true} {
		t.Run(fmt.Sprintf("we begin, psk %v", psk), func(t *testing.T) {
			t.Parallel()
			f := newForeign(t, psk)
			for i := range 20 {
				f.fromUs(i)
				f.fromForeign(i)
			}
			if f.ours.begun != 1 {
				t.Errorf("it took %d sessions", f.ours.begun)
			}
		})
		t.Run(fmt.Sprintf("wireguard-go begins, psk %v", psk), func(t *testing.T) {
			t.Parallel()
			f := newForeign(t, psk)
			for i := range 20 {
				f.fromForeign(i)
				f.fromUs(i)
			}
			if f.ours.begun != 1 {
				t.Errorf("it took %d sessions", f.ours.begun)
			}
		})
	}
}

func TestAnotherPSKMakesNoSessionWithWireguardGo(t *testing.T) {
	f := newForeign(t, true)
	f.ours.p.psk[0] ^= 1
	f.ours.packet(time.Now(), []byte("never to arrive"))
	deadline := time.After(500 * time.Millisecond)
	for done := false; !done; {
		select {
		case msg := <-f.wire.out:
			f.ours.take(time.Now(), msg)
		case <-deadline:
			done = true
		}
	}
	if f.ours.current != nil {
		t.Error("there is a session without a common secret")
	}
}
