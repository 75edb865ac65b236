package proxy

import (
	"bytes"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func FuzzSOCKS(f *testing.F) {
	greeting := "\x05\x01\x02\x01\x04weft\x04open"
	for _, s := range []string{
		"", "\x05", "\x05\x00", "\x05\x01\x00", "\x05\x01\x02\x01\x00\x00", greeting,
		greeting + "\x05\x01\x00\x01\x64\x40\x00\x07\x00\x50",
		greeting + "\x05\x01\x00\x03\x11web.weft.internal\x00\x50",
		greeting + "\x05\x03\x00\x04" + strings.Repeat("\x00", 18),
		greeting + "\x05\x01\x00\x03\x00\x00\x50", greeting + "\x05\x09\x00\x09",
		"\x05\xff" + strings.Repeat("\x02", 255) + "\x01\xff" + strings.Repeat("a", 255) + "\xff" + strings.Repeat("b", 255),
	} {
		f.Add([]byte(s))
	}
	p := listen(f, &overlay{}, func(c *Config) { c.Password = "open" })
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		command, to, err := p.negotiate(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), &out})
		if err != nil {
			return
		}
		if !bytes.Contains(b, []byte("\x01\x04weft\x04open")) {
			t.Fatalf("%x was let in to %d %v", b, command, to)
		}
		if to.host == "" {
			t.Fatalf("%x leads to nowhere", b)
		}
	})
}

func FuzzDatagram(f *testing.F) {
	f.Add(append([]byte{0, 0, 0}, append(appendAddr(nil, netip.MustParseAddrPort("100.64.0.7:53")), "x"...)...))
	f.Add(append([]byte{0, 0, 0}, appendAddr(nil, netip.MustParseAddrPort("[fd00::7]:53"))...))
	f.Add([]byte("\x00\x00\x00\x03\x03web\x00\x35data"))
	f.Add([]byte{0, 0, 1, 1})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		to, payload, err := parseDatagram(b)
		if err != nil {
			return
		}
		if !bytes.HasSuffix(b, payload) {
			t.Fatalf("payload %x is not the end of %x", payload, b)
		}
		addr, err := netip.ParseAddr(to.host)
		if err != nil || addr.Is4In6() || b[3] == addressName {
			return
		}
		again := append(appendAddr(append([]byte(nil), b[:3]...), netip.AddrPortFrom(addr, to.port)), payload...)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x was read as %x", b, again)
		}
	})
}

func FuzzProxyAuthorization(f *testing.F) {
	for _, s := range []string{"", "Basic", "Basic d2VmdDpvcGVu", "basic  d2VmdDpvcGVu ", "Bearer x", "Basic ====", "Basic OnA="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		user, password, ok := proxyAuthorization(header)
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		if u, p, sure := r.BasicAuth(); sure && (!ok || u != user || p != password) {
			t.Fatalf("%q is %q and %q, and net/http says %q and %q", header, user, password, u, p)
		}
	})
}
