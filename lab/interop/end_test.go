package interop

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/lab/guest"
	"weft/lab/netns"
)

// A tunnel is one end's side of a WireGuard tunnel.
type tunnel struct {
	Name     string // of the interface
	Private  [32]byte
	Peer     [32]byte // public
	PSK      [32]byte // zero: none
	Port     uint16
	Endpoint netip.AddrPort // of the peer; zero: to be learned from it
	MTU      int            // within
	Addrs    []netip.Prefix
	Allowed  []netip.Prefix // of the peer, within

	// Another peer that is never there has these within; none: there is no other.
	Elsewhere []netip.Prefix
	Stranger  [32]byte // its public key

	// Keepalive is how often at least something is sent; zero: only data is. Who moves and has nothing to say is not found again
	// without.
	Keepalive time.Duration
}

// newPair makes both sides of a tunnel, with addresses of its own.
func newPair(t testing.TB, number int, psk bool) (a, b tunnel) {
	for _, side := range []*tunnel{&a, &b} {
		k := must(ecdh.X25519().GenerateKey(rand.Reader))(t)
		copy(side.Private[:], k.Bytes())
	}
	a.Peer, b.Peer = public(t, b.Private), public(t, a.Private)
	if psk {
		rand.Read(a.PSK[:])
		b.PSK = a.PSK
	}
	for i, side := range []*tunnel{&a, &b} {
		// Userspace ends are found by their name on the whole machine, whatever their namespace.
		side.Name = fmt.Sprintf("wi%d-%d%c", os.Getpid(), number, 'a'+i)
		side.Port, side.MTU = uint16(51820+number), innerMTU
		side.Addrs = []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(number), byte(1 + i)}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x99, 7: byte(number), 15: byte(1 + i)}), 64),
		}
		for _, a := range side.Addrs {
			side.Allowed = append(side.Allowed, a.Masked()) // who else is there is the peer
		}
	}
	return a, b
}

func public(t testing.TB, private [32]byte) (key [32]byte) {
	copy(key[:], must(ecdh.X25519().NewPrivateKey(private[:]))(t).PublicKey().Bytes())
	return key
}

// state is what an end knows of a tunnel's peer.
type state struct {
	Endpoint  netip.AddrPort
	Handshake time.Time
}

// A kind is whose WireGuard an end is.
type kind interface {
	// open makes the tunnel's interface, with its addresses, ready to use. It is gone when the test is over.
	open(t *testing.T, n tunnel)
	// state tells of a tunnel that was opened.
	state(n tunnel) (state, error)
	// run runs this binary in one of its roles where the interface is.
	run(ctx context.Context, role string, stdin []byte) (string, error)
	// addr is where the end is found, outside; move gives it another.
	addr(six bool) netip.Addr
	move(t *testing.T, number int)
}

// self is this binary.
var self = sync.OnceValue(func() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
})

// A machine is a namespace with an end in it.
type machine struct{ *netns.Host }

func (m machine) run(ctx context.Context, role string, stdin []byte) (string, error) {
	cmd := m.Command(ctx, self(), role)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s on %s: %w: %s", role, m.Name, errors.Join(err, context.Cause(ctx)), &stderr)
	}
	return stdout.String(), nil
}

func (m machine) addr(six bool) netip.Addr {
	if six {
		return m.Addr6()
	}
	return m.Addr()
}

// moved are the addresses of a machine after a move: far from those that the lab gives.
func moved(a netip.Addr, number int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] = byte(100 + (int(b[len(b)-1])*10+number)%150)
	a, _ = netip.AddrFromSlice(b)
	return a
}

func (m machine) move(t *testing.T, number int) {
	t.Helper()
	// The routes go with the addresses.
	lines := "addr flush dev eth0 scope global\n"
	for _, a := range []netip.Addr{m.Addr(), m.Addr6()} {
		bits, family, nodad := 24, "0.0.0.0/0", ""
		if a.Is6() {
			bits, family, nodad = 64, "::/0", " nodad"
		}
		gateway := netip.PrefixFrom(a, bits).Masked().Addr().Next()
		lines += fmt.Sprintf("addr add %s/%d dev eth0%s\nroute replace %s via %s\n", moved(a, number), bits, nodad, family, gateway)
	}
	must(m.batch(t.Context(), lines))(t)
}

// batch runs lines of ip(8).
func (m machine) batch(ctx context.Context, lines string) (string, error) {
	cmd := m.Command(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(lines)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ip on %s: %w: %s", m.Name, err, out)
	}
	return string(out), nil
}

// raise gives a tunnel's interface its addresses.
func raise(n tunnel) string {
	lines := []string{fmt.Sprintf("link set %s up mtu %d addrgenmode none", n.Name, n.MTU)}
	for _, a := range n.Addrs {
		nodad := ""
		if a.Addr().Is6() {
			nodad = " nodad"
		}
		lines = append(lines, fmt.Sprintf("addr add %s dev %s%s", a, n.Name, nodad))
	}
	return strings.Join(lines, "\n") + "\n"
}

// raised waits until the kernel takes packets to a tunnel's addresses for its own: of IPv6, a queue of the kernel's sees to
// that later.
func raised(ctx context.Context, n tunnel, run func(ctx context.Context, name string, args ...string) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return netns.WaitFor(ctx, n.Name, func() error {
		out, err := run(ctx, "ip", "-6", "route", "show", "table", "local", "dev", n.Name)
		for _, a := range n.Addrs {
			if a.Addr().Is6() && !strings.Contains(out, "local "+a.Addr().String()+" ") {
				err = errors.Join(err, fmt.Errorf("it has no address %s", a.Addr()))
			}
		}
		return err
	})
}

// configuration is a tunnel's for `wg setconf`.
func (n tunnel) configuration() []byte {
	var b bytes.Buffer
	key := func(name string, k [32]byte) {
		fmt.Fprintf(&b, "%s = %s\n", name, base64.StdEncoding.EncodeToString(k[:]))
	}
	fmt.Fprintln(&b, "[Interface]")
	key("PrivateKey", n.Private)
	fmt.Fprintf(&b, "ListenPort = %d\n[Peer]\n", n.Port)
	key("PublicKey", n.Peer)
	if n.PSK != [32]byte{} {
		key("PresharedKey", n.PSK)
	}
	if n.Endpoint.IsValid() {
		fmt.Fprintf(&b, "Endpoint = %s\n", n.Endpoint)
	}
	if n.Keepalive > 0 {
		fmt.Fprintf(&b, "PersistentKeepalive = %d\n", n.Keepalive/time.Second)
	}
	for _, a := range n.Allowed {
		fmt.Fprintf(&b, "AllowedIPs = %s\n", a)
	}
	if len(n.Elsewhere) > 0 {
		fmt.Fprintln(&b, "[Peer]")
		key("PublicKey", n.Stranger)
	}
	for _, a := range n.Elsewhere {
		fmt.Fprintf(&b, "AllowedIPs = %s\n", a)
	}
	return b.Bytes()
}

// parseDump reads the line of `wg show NAME dump` that is of the only peer.
func parseDump(dump string) (s state, err error) {
	lines := strings.Split(strings.TrimSpace(dump), "\n")
	if len(lines) != 2 {
		return s, fmt.Errorf("wg shows %d lines, not of an interface and a peer", len(lines))
	}
	// public key, PSK, endpoint, allowed IPs, latest handshake, received, sent, keepalive (wg(8))
	f := strings.Split(lines[1], "\t")
	if len(f) != 8 {
		return s, fmt.Errorf("wg shows a peer in %d columns: %q", len(f), lines[1])
	}
	if f[2] != "(none)" {
		if s.Endpoint, err = netip.ParseAddrPort(f[2]); err != nil {
			return s, err
		}
	}
	seconds, err := strconv.ParseInt(f[4], 10, 64)
	if err == nil && seconds > 0 {
		s.Handshake = time.Unix(seconds, 0)
	}
	return s, err
}

// library is wireguard-go of our go.mod in a process of ours.
type library struct{ machine }

func (l library) open(t *testing.T, n tunnel) {
	t.Helper()
	cmd := l.Command(context.WithoutCancel(t.Context()), self(), "interop-library", n.Name)
	openUserspace(t, l.machine, n, must(l.Start(cmd))(t))
}

func (l library) state(n tunnel) (state, error) { return wgState(l.machine, n) }

// debian is Debian's wireguard-go.
type debian struct{ machine }

func (d debian) open(t *testing.T, n tunnel) {
	t.Helper()
	cmd := d.Command(context.WithoutCancel(t.Context()), "wireguard-go", "-f", n.Name)
	openUserspace(t, d.machine, n, must(d.Start(cmd))(t))
}

func (d debian) state(n tunnel) (state, error) { return wgState(d.machine, n) }

// openUserspace waits for the control socket of a program, and sets its interface up.
func openUserspace(t *testing.T, m machine, n tunnel, p *netns.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	socket := "/var/run/wireguard/" + n.Name + ".sock"
	t.Cleanup(func() {
		p.Stop()
		os.Remove(socket) // of one that was killed
	})
	err := netns.WaitFor(ctx, n.Name, func() error {
		if err := p.Err(); err != nil {
			return err
		}
		// Its file is there before it listens, and wg removes a socket that refuses it.
		c, err := net.Dial("unix", socket)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := m.Command(ctx, "wg", "setconf", n.Name, "/dev/stdin")
	cmd.Stdin = bytes.NewReader(n.configuration())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wg setconf: %v: %s", err, out)
	}
	must(m.batch(ctx, raise(n)))(t)
	if err := raised(ctx, n, m.Run); err != nil {
		t.Fatal(err)
	}
}

func wgState(m machine, n tunnel) (state, error) {
	out, err := m.Run(context.Background(), "wg", "show", n.Name, "dump")
	if err != nil {
		return state{}, err
	}
	return parseDump(out)
}

// kernel is the kernel's WireGuard in a guest.
type kernel struct {
	*guest.Guest
	prefixes []netip.Prefix
}

func (k kernel) open(t *testing.T, n tunnel) {
	t.Helper()
	ctx := t.Context()
	must(k.Run(ctx, nil, "ip", "link", "add", n.Name, "type", "wireguard"))(t)
	t.Cleanup(func() { k.Run(context.Background(), nil, "ip", "link", "del", n.Name) })
	must(k.Run(ctx, n.configuration(), "wg", "setconf", n.Name, "/dev/stdin"))(t)
	must(k.Run(ctx, []byte(raise(n)), "ip", "-batch", "-"))(t)
	err := raised(ctx, n, func(ctx context.Context, name string, args ...string) (string, error) {
		return k.Run(ctx, nil, name, args...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (k kernel) state(n tunnel) (state, error) {
	out, err := k.Run(context.Background(), nil, "wg", "show", n.Name, "dump")
	if err != nil {
		return state{}, err
	}
	return parseDump(out)
}

func (k kernel) run(ctx context.Context, role string, stdin []byte) (string, error) {
	return k.Run(ctx, stdin, self(), role)
}

func (k kernel) addr(six bool) netip.Addr {
	for _, p := range k.prefixes {
		if p.Addr().Is6() == six {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

func (k kernel) move(t *testing.T, number int) {
	t.Helper()
	var list []netip.Prefix
	for _, p := range k.prefixes {
		b := p.Addr().AsSlice()
		b[len(b)-1] += byte(1 + number%5)
		a, _ := netip.AddrFromSlice(b)
		list = append(list, netip.PrefixFrom(a, p.Bits()))
	}
	if err := k.SetAddrs(t.Context(), list...); err != nil {
		t.Fatal(err)
	}
}

// hold holds a talk from an end's side.
func hold(ctx context.Context, k kind, what talk) (list []heard, err error) {
	in, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	out, err := k.run(ctx, "interop-talk", in)
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal([]byte(out), &list)
}
