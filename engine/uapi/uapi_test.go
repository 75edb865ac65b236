package uapi

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weft/key"
)

var sameValues = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, key.NodePublic{}),
	cmp.Comparer(func(a, b key.NodePrivate) bool { return a.RevealBytes() == b.RevealBytes() }),
	cmpopts.EquateEmpty(),
}

func private(b byte) key.NodePrivate {
	k, err := key.PrivateFrom[key.Node](bytes.Repeat([]byte{b}, key.Size))
	if err != nil {
		panic(err)
	}
	return k
}

func ptr[T any](v T) *T { return &v }

func parse(text string) (Change, error) { return ParseChange(bufio.NewReader(strings.NewReader(text))) }

const someKey = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"

func TestASetIsReadWhole(t *testing.T) {
	k, _ := key.PublicFrom[key.Node](must(hex.DecodeString(someKey)))
	psk := [32]byte(must(hex.DecodeString(strings.Repeat("ab", 32))))
	got, err := parse("listen_port=51820\nfwmark=0\nreplace_peers=true\npublic_key=" + someKey + "\nupdate_only=true\nallowed_ip=10.0.0.0/8\n" +
		"replace_allowed_ips=true\npreshared_key=" + strings.Repeat("ab", 32) + "\nendpoint=[2001:db8::1]:7\npersistent_keepalive_interval=25\n" +
		"allowed_ip=192.0.2.7/24\nallowed_ip=-fd00::/8\nprotocol_version=1\npublic_key=" + someKey + "\nremove=true\n\nrest")
	want := Change{
		Port: ptr[uint16](51820), FwMark: ptr[uint32](0), ReplacePeers: true,
		Peers: []PeerChange{{
			Key: k, UpdateOnly: true, ReplaceAllowed: true, PSK: &psk, Endpoint: ptr(netip.MustParseAddrPort("[2001:db8::1]:7")), Keepalive: ptr(25 * time.Second),
			Allowed: []AllowedChange{{netip.MustParsePrefix("192.0.2.0/24"), false}, {netip.MustParsePrefix("fd00::/8"), true}},
		}, {Key: k, Remove: true}},
	}
	if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	if c, err := parse("private_key=" + strings.Repeat("00", 32) + "\n\n"); err != nil || c.Private == nil || !c.Private.IsZero() {
		t.Errorf("taking the private key away: %v", err)
	}
	if c, err := parse("private_key=" + strings.Repeat("40", 32) + "\n\n"); err != nil || c.Private == nil || c.Private.Public() != private(0x40).Public() {
		t.Errorf("another private key: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestASetThatIsNoneIsRefusedWithANumber(t *testing.T) {
	peer := "public_key=" + someKey + "\n"
	for text, errno := range map[string]syscall.Errno{
		"nonsense\n\n":                                   syscall.EINVAL,
		"colour=red\n\n":                                 syscall.EINVAL,
		"private_key=12\n\n":                             syscall.EINVAL,
		"private_key=" + someKey + "00\n\n":              syscall.EINVAL,
		"private_key=" + someKey[:63] + "g\n\n":          syscall.EINVAL,
		"listen_port=65536\n\n":                          syscall.EINVAL,
		"listen_port=-1\n\n":                             syscall.EINVAL,
		"fwmark=0x1\n\n":                                 syscall.EINVAL,
		"replace_peers=false\n\n":                        syscall.EINVAL,
		"remove=true\n\n":                                syscall.EINVAL, // of whom?
		peer + "listen_port=1\n\n":                       syscall.EINVAL,
		peer + "remove=yes\n\n":                          syscall.EINVAL,
		peer + "endpoint=host.example:1\n\n":             syscall.EINVAL,
		peer + "endpoint=192.0.2.1:0\n\n":                syscall.EINVAL,
		peer + "endpoint=0.0.0.0:1\n\n":                  syscall.EINVAL,
		peer + "allowed_ip=10.0.0.1\n\n":                 syscall.EINVAL,
		peer + "allowed_ip=10.0.0.0/33\n\n":              syscall.EINVAL,
		peer + "allowed_ip=::ffff:1.2.3.4/96\n\n":        syscall.EINVAL,
		peer + "persistent_keepalive_interval=65536\n\n": syscall.EINVAL,
		peer + "protocol_version=2\n\n":                  syscall.EPROTONOSUPPORT,
		strings.Repeat("x", maxLine+1) + "\n\n":          syscall.E2BIG,
		strings.Repeat("fwmark=1\n", maxSet/9+1) + "\n":  syscall.E2BIG,
	} {
		_, err := parse(text)
		var e *Error
		if !errors.As(err, &e) || e.Errno != errno || errnoOf(err) != errno {
			t.Errorf("%.50q: %v, want number %d", text, err, errno)
		}
		if err != nil && (strings.Contains(err.Error(), someKey[:10]) || strings.Contains(err.Error(), "red")) {
			t.Errorf("%.50q: the error tells what was set: %v", text, err)
		}
	}
	for _, text := range []string{"", "fwmark=1", "fwmark=1\n"} {
		if _, err := parse(text); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q, and then nothing: %v", text, err)
		}
	}
}

func TestAGetTellsAll(t *testing.T) {
	k, _ := key.PublicFrom[key.Node](must(hex.DecodeString(someKey)))
	full := Interface{Private: private(0x40), Port: 51820, FwMark: 7, Peers: []Peer{
		{Key: k, PSK: [32]byte{31: 1}, Endpoint: netip.MustParseAddrPort("192.0.2.1:7"), HandshakeAt: time.Unix(5, 6), RxBytes: 1, TxBytes: 2,
			Keepalive: 25 * time.Second, Allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		{Key: k},
	}}
	want := "private_key=" + strings.Repeat("40", 32) + "\nlisten_port=51820\nfwmark=7\npublic_key=" + someKey + "\npreshared_key=" + strings.Repeat("00", 31) +
		"01\nprotocol_version=1\nendpoint=192.0.2.1:7\nlast_handshake_time_sec=5\nlast_handshake_time_nsec=6\ntx_bytes=2\nrx_bytes=1\npersistent_keepalive_interval=25\n" +
		"allowed_ip=10.0.0.0/8\nallowed_ip=fd00::/8\npublic_key=" + someKey + "\npreshared_key=" + strings.Repeat("00", 32) +
		"\nprotocol_version=1\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=0\ntx_bytes=0\nrx_bytes=0\npersistent_keepalive_interval=0\n"
	if diff := cmp.Diff(want, string(AppendInterface(nil, full))); diff != "" {
		t.Error(diff)
	}
	if got := AppendInterface(nil, Interface{}); len(got) != 0 {
		t.Errorf("of nothing it tells %q", got)
	}
}

func TestPrefixesChangeInTheOrderOfTheSet(t *testing.T) {
	have := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")}
	change := func(s string) AllowedChange {
		text, remove := strings.CutPrefix(s, "-")
		return AllowedChange{netip.MustParsePrefix(text), remove}
	}
	for _, c := range []struct {
		replace bool
		changes []string
		want    string
	}{
		{false, nil, "[10.0.0.0/8 10.1.0.0/16]"},
		{true, nil, "[]"},
		{true, []string{"fd00::/8", "9.0.0.0/8"}, "[9.0.0.0/8 fd00::/8]"},
		{false, []string{"10.0.0.0/8", "9.0.0.0/8"}, "[9.0.0.0/8 10.0.0.0/8 10.1.0.0/16]"},
		{false, []string{"-10.0.0.0/8", "-11.0.0.0/8"}, "[10.1.0.0/16]"},
		{false, []string{"9.0.0.0/8", "-9.0.0.0/8"}, "[10.0.0.0/8 10.1.0.0/16]"},
		{false, []string{"-10.0.0.0/8", "10.0.0.0/8"}, "[10.0.0.0/8 10.1.0.0/16]"},
	} {
		p := PeerChange{ReplaceAllowed: c.replace}
		for _, s := range c.changes {
			p.Allowed = append(p.Allowed, change(s))
		}
		if got := fmt.Sprint(p.Apply(have)); got != c.want {
			t.Errorf("%v %v: %s, want %s", c.replace, c.changes, got, c.want)
		}
	}
	if have[0].String() != "10.0.0.0/8" || have[1].String() != "10.1.0.0/16" {
		t.Errorf("what was there before is %v", have)
	}
}

// appendChange writes a set as tools do.
func appendChange(c Change) string {
	var b strings.Builder
	if c.Private != nil {
		raw := c.Private.RevealBytes()
		fmt.Fprintf(&b, "private_key=%x\n", raw[:])
	}
	if c.Port != nil {
		fmt.Fprintf(&b, "listen_port=%d\n", *c.Port)
	}
	if c.FwMark != nil {
		fmt.Fprintf(&b, "fwmark=%d\n", *c.FwMark)
	}
	if c.ReplacePeers {
		b.WriteString("replace_peers=true\n")
	}
	for _, p := range c.Peers {
		k := p.Key.Bytes()
		fmt.Fprintf(&b, "public_key=%x\n", k[:])
		for _, f := range []struct {
			is   bool
			name string
		}{{p.Remove, "remove"}, {p.UpdateOnly, "update_only"}, {p.ReplaceAllowed, "replace_allowed_ips"}} {
			if f.is {
				fmt.Fprintf(&b, "%s=true\n", f.name)
			}
		}
		if p.PSK != nil {
			fmt.Fprintf(&b, "preshared_key=%x\n", *p.PSK)
		}
		if p.Endpoint != nil {
			fmt.Fprintf(&b, "endpoint=%s\n", *p.Endpoint)
		}
		if p.Keepalive != nil {
			fmt.Fprintf(&b, "persistent_keepalive_interval=%d\n", *p.Keepalive/time.Second)
		}
		for _, a := range p.Allowed {
			fmt.Fprintf(&b, "allowed_ip=%s%s\n", map[bool]string{true: "-"}[a.Remove], a.Prefix)
		}
	}
	return b.String() + "\n"
}

func FuzzSetsAreReadOrRefused(f *testing.F) {
	peer := "public_key=" + someKey + "\n"
	for _, s := range []string{
		"\n", "fwmark=1\n\n", "listen_port=51820\nreplace_peers=true\n" + peer + "allowed_ip=10.0.0.0/8\n\n", "private_key=" + someKey + "\n\n",
		peer + "preshared_key=" + someKey + "\nendpoint=[fe80::1%eth0]:7\nallowed_ip=-::/0\nupdate_only=true\n" + peer + "remove=true\n\n",
		peer + "allowed_ip=1.2.3.4/5\nreplace_allowed_ips=true\npersistent_keepalive_interval=0\nprotocol_version=1\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseChange(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("an error without a number: %v", err)
			}
			return
		}
		again, err := parse(appendChange(c))
		if diff := cmp.Diff(c, again, sameValues); err != nil || diff != "" {
			t.Errorf("%q read again: %v: %s", text, err, diff)
		}
	})
}
