package engine

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"weft"
	"weft/key"
)

// foreign is a plain wireguard-go, upstream's sockets and all.
type foreign struct {
	dev *device.Device
	tun *tuntest.ChannelTUN
	key key.NodePrivate
}

func newForeign(t *testing.T, n *node, at weft.NodeID, endpoint bool) *foreign {
	t.Helper()
	f := &foreign{tun: tuntest.NewChannelTUN(), key: key.NewPrivate[key.Node]()}
	f.dev = device.NewDevice(f.tun.TUN(), conn.NewStdNetBind(), device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(f.dev.Close)
	if err := f.dev.SetPrivateKey(device.NoisePrivateKey(f.key.RevealBytes())); err != nil {
		t.Fatal(err)
	}
	k := n.key.Public().Bytes()
	cfg := fmt.Sprintf("public_key=%s\nallowed_ip=%s/32\n", hex.EncodeToString(k[:]), addrOf(n.id))
	if endpoint {
		cfg += fmt.Sprintf("endpoint=%s\n", n.addr())
	}
	if err := f.dev.IpcSet(cfg); err != nil {
		t.Fatal(err)
	}
	if err := f.dev.Up(); err != nil {
		t.Fatal(err)
	}
	mustSetPeers(t, n, Peer{ID: at, Key: f.key.Public(), Allowed: []netip.Prefix{netip.PrefixFrom(addrOf(at), 32)}})
	return f
}

func (f *foreign) get(t *testing.T, key string) string {
	t.Helper()
	all, err := f.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(all) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return v
		}
	}
	return ""
}

func (f *foreign) addr(t *testing.T) netip.AddrPort {
	return netip.MustParseAddrPort("127.0.0.1:" + f.get(t, "listen_port"))
}

func (f *foreign) send(t *testing.T, p []byte) {
	t.Helper()
	select {
	case f.tun.Outbound <- p:
	case <-time.After(patience):
		t.Fatal("the foreign peer takes no packet")
	}
}

func (f *foreign) expect(t *testing.T, want []byte) {
	t.Helper()
	select {
	case got := <-f.tun.Inbound:
		if string(got) != string(want) {
			t.Fatalf("the foreign peer got %x, want %x", got, want)
		}
	case <-time.After(patience):
		t.Fatal("the foreign peer got nothing")
	}
}

func (n *node) expect(t *testing.T, want []byte) {
	t.Helper()
	select {
	case got := <-n.tun.in:
		if string(got) != string(want) {
			t.Fatalf("got %x, want %x", got, want)
		}
	case <-time.After(patience):
		t.Fatal("nothing arrived")
	}
}

func TestAPlainWireGuardPeerExchangesPacketsBothWays(t *testing.T) {
	ours, theirs := packet(addrOf(1), addrOf(9), 1, 700), packet(addrOf(9), addrOf(1), 2, 701)
	t.Run("when it begins", func(t *testing.T) {
		n := start(t, 1)
		f := newForeign(t, n, 9, true)
		n.SetRoute(9, weft.DirectVia(0, f.addr(t)))
		f.send(t, theirs)
		n.expect(t, theirs)
		n.tun.out <- ours
		f.expect(t, ours)
	})
	t.Run("when we begin", func(t *testing.T) {
		n := start(t, 1)
		f := newForeign(t, n, 9, false) // it learns our address from us, as WireGuard does
		n.Learn(9, f.addr(t))
		n.SetRoute(9, weft.DirectVia(0, f.addr(t)))
		n.tun.out <- ours
		f.expect(t, ours)
		f.send(t, theirs)
		n.expect(t, theirs)
		eventually(t, "an initiation, a response and two packets are counted", func() bool {
			c := counters(n, 9, weft.DirectVia(0, f.addr(t)))
			return c.TxPackets >= 2 && c.RxPackets >= 2
		})
	})
}

func TestAStrangersHandshakeIsAnsweredWhereItCameFromAndMovesNoRoute(t *testing.T) {
	n := start(t, 1)
	f := newForeign(t, n, 9, true)
	theirs := packet(addrOf(9), addrOf(1), 2, 100)
	f.send(t, theirs)
	n.expect(t, theirs) // so the response has found its way
	if n.Handshake(9).IsZero() {
		eventually(t, "the handshake is known", func() bool { return !n.Handshake(9).IsZero() })
	}
	before := n.Drops().NoRoute
	n.tun.out <- packet(addrOf(1), addrOf(9), 1, 100)
	eventually(t, "data without a route is dropped", func() bool { return n.Drops().NoRoute > before })
	select {
	case p := <-f.tun.Inbound:
		t.Fatalf("a packet went where no route leads: %x", p)
	default:
	}
	if c := n.Counters(nil, 9); len(c) != 0 {
		t.Errorf("packets of nobody were counted: %+v", c)
	}
}
