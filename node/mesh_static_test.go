package node

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/uapi"
	"weft/key"
)

func hexKey(k key.NodePublic) string {
	b := k.Bytes()
	return hex.EncodeToString(b[:])
}

func TestByHandOnlyWhatIsNotTheNetworksIsChanged(t *testing.T) {
	own, node, phone, router := key.NewPrivate[key.Node](), key.NewPrivate[key.Node]().Public(), key.NewPrivate[key.Node]().Public(), key.NewPrivate[key.Node]().Public()
	addrs := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	me := &mesh{cfg: meshConfig{Key: own}, netmap: weft.NetworkMap{
		Self:  weft.Node{ID: 1, Key: own.Public(), Addrs: addrs("100.64.0.2")},
		Peers: []weft.Node{{ID: 2, Key: node, Addrs: addrs("100.64.0.3")}, {ID: 3, Key: phone, Addrs: addrs("100.64.0.4"), Gateway: 1}},
	}}
	raw := own.RevealBytes()
	set := func(lines ...string) error {
		t.Helper()
		c, err := uapi.ParseChange(bufio.NewReader(strings.NewReader(strings.Join(lines, "\n") + "\n\n")))
		if err != nil {
			t.Fatal(err)
		}
		next, given, err := me.changeStatic(c, 41641)
		if err == nil {
			me.plain.static, me.plain.given = next, given
		}
		return err
	}
	peer := func(k key.NodePublic) string { return "public_key=" + hexKey(k) }
	for what, c := range map[string]struct {
		lines []string
		errno syscall.Errno
	}{
		"another private key":       {[]string{"private_key=" + strings.Repeat("41", 32)}, syscall.EPERM},
		"no private key":            {[]string{"private_key=" + strings.Repeat("00", 32)}, syscall.EPERM},
		"another port":              {[]string{"listen_port=1"}, syscall.EPERM},
		"a mark":                    {[]string{"fwmark=1"}, syscall.EPERM},
		"all peers":                 {[]string{"replace_peers=true"}, syscall.EPERM},
		"removing a node":           {[]string{peer(node), "remove=true"}, syscall.EPERM},
		"a phone of the network's":  {[]string{peer(phone), "allowed_ip=10.0.0.0/8"}, syscall.EPERM},
		"itself":                    {[]string{peer(own.Public())}, syscall.EPERM},
		"a node's address":          {[]string{peer(router), "allowed_ip=100.64.0.3/32"}, syscall.EADDRINUSE},
		"its own address":           {[]string{peer(router), "allowed_ip=100.64.0.2/32"}, syscall.EADDRINUSE},
		"something good and a node": {[]string{peer(router), "allowed_ip=10.0.0.0/8", peer(node), "remove=true"}, syscall.EPERM},
	} {
		err := set(c.lines...)
		var e *uapi.Error
		if !errors.As(err, &e) || e.Errno != c.errno || len(me.plain.static) != 0 {
			t.Errorf("%s: %v, want number %d; peers are %v", what, err, c.errno, me.plain.static)
		}
	}
	if err := set("private_key="+hex.EncodeToString(raw[:]), "listen_port=41641", "fwmark=0", peer(router), "update_only=true"); err != nil || len(me.plain.static) != 0 {
		t.Errorf("what is so already: %v, %v", err, me.plain.static)
	}

	if err := set(peer(router), "endpoint=192.0.2.1:7", "persistent_keepalive_interval=25", "preshared_key="+strings.Repeat("ab", 32), "allowed_ip=10.0.0.0/8", "allowed_ip=100.64.0.0/16"); err != nil {
		t.Fatal(err)
	}
	got := me.plain.static[router]
	if got.ID != ^weft.NodeID(0) || !got.Plain || got.Endpoint.String() != "192.0.2.1:7" || got.Keepalive != 25*time.Second || got.PSK[31] != 0xab || fmt.Sprint(got.Allowed) != "[10.0.0.0/8 100.64.0.0/16]" {
		t.Errorf("%+v", got)
	}
	other := key.NewPrivate[key.Node]().Public()
	if err := set(peer(other), "allowed_ip=10.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	if a, b := me.plain.static[router], me.plain.static[other]; fmt.Sprint(a.Allowed) != "[100.64.0.0/16]" || fmt.Sprint(b.Allowed) != "[10.0.0.0/8]" || a.ID == b.ID || a.PSK != got.PSK {
		t.Errorf("a prefix that is given to another: %v, %v", a.Allowed, b.Allowed)
	}
	if err := set(peer(router), "remove=true", peer(other), "update_only=true", "persistent_keepalive_interval=7"); err != nil {
		t.Fatal(err)
	}
	if p, ok := me.plain.static[other]; len(me.plain.static) != 1 || !ok || p.Keepalive != 7*time.Second {
		t.Errorf("left are %+v", me.plain.static)
	}
	var many []string
	for i := range maxStatic {
		many = append(many, fmt.Sprintf("public_key=%064x", i+1))
	}
	var e *uapi.Error
	if err := set(many...); !errors.As(err, &e) || e.Errno != syscall.ENOSPC || len(me.plain.static) != 1 {
		t.Errorf("one too many: %v", err)
	}
}

func TestPacketsToAPlainNodeGoToItsGateway(t *testing.T) {
	addrs := func(s ...string) (out []netip.Addr) {
		for _, a := range s {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	me := &mesh{netmap: weft.NetworkMap{Self: weft.Node{ID: 1}, Peers: []weft.Node{
		{ID: 2, Addrs: addrs("100.64.0.3", "fd00::2")}, {ID: 3, Addrs: addrs("100.64.0.4", "fd00::3"), Gateway: 2},
		{ID: 4, Addrs: addrs("100.64.0.5"), Gateway: 2}, {ID: 5, Addrs: addrs("100.64.0.6"), Gateway: 1},
	}}}
	behind := me.behind()
	if got := fmt.Sprint(behind[2]); got != "[100.64.0.4/32 fd00::3/128 100.64.0.5/32]" || len(behind) != 2 {
		t.Errorf("behind 2 are %s of %v", got, behind)
	}
}

func TestGuestsAloneMayAskForNames(t *testing.T) {
	n := newNames(meshConfig{})
	if n.isGuest(netip.MustParseAddr("100.64.0.5")) {
		t.Error("before there are any, somebody is a guest")
	}
	n.serve([]netip.Prefix{netip.MustParsePrefix("100.64.0.5/32"), netip.MustParsePrefix("fd00::5/128"), netip.MustParsePrefix("10.77.0.0/24")})
	for addr, want := range map[string]bool{"100.64.0.5": true, "::ffff:100.64.0.5": true, "fd00::5": true, "10.77.0.9": true, "100.64.0.6": false, "fd00::6": false} {
		if got := n.isGuest(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is a guest: %v", addr, got)
		}
	}
	if n.serve(nil); n.isGuest(netip.MustParseAddr("100.64.0.5")) {
		t.Error("who was one still is")
	}
}

func TestAGuestThatChangesIsAnotherOne(t *testing.T) {
	a := engine.Peer{ID: 1, Key: key.NewPrivate[key.Node]().Public(), Allowed: hostPrefixes([]netip.Addr{netip.MustParseAddr("100.64.0.3")})}
	for _, change := range []func(*engine.Peer){
		func(p *engine.Peer) { p.ID = 2 }, func(p *engine.Peer) { p.Key = key.NodePublic{} }, func(p *engine.Peer) { p.Allowed = nil },
		func(p *engine.Peer) { p.PSK[0] = 1 }, func(p *engine.Peer) { p.Keepalive = 1 }, func(p *engine.Peer) { p.Endpoint = netip.MustParseAddrPort("192.0.2.1:1") },
	} {
		b := a
		b.Allowed = slices.Clone(a.Allowed)
		if !sameGuest(a, b) {
			t.Error("a copy is another one")
		}
		if change(&b); sameGuest(a, b) {
			t.Errorf("%+v is the same as %+v", b, a)
		}
	}
}
