package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"

	"weft"
)

// parsePrefix reads an address or a prefix.
func parsePrefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// protocols by the names that IANA has for them and this grammar knows. Ping is of both families.
var protocols = map[string][]uint8{
	"icmp": {weft.ProtoICMP, weft.ProtoICMPv6}, "ipv6-icmp": {weft.ProtoICMPv6}, "icmpv6": {weft.ProtoICMPv6},
	"igmp": {2}, "ipv4": {4}, "ip-in-ip": {4}, "tcp": {weft.ProtoTCP}, "egp": {8}, "igp": {9}, "udp": {weft.ProtoUDP},
	"dccp": {33}, "gre": {47}, "esp": {50}, "ah": {51}, "sctp": {weft.ProtoSCTP}, "udplite": {136},
}

// withPorts are the protocols that have them.
var withPorts = []uint8{weft.ProtoTCP, weft.ProtoUDP, 33, weft.ProtoSCTP, 136}

// protos reads a protocol's name or number; nil: none is named.
func (d *Document) protos(w *word) []uint8 {
	if w == nil || w.text == "" {
		return nil
	}
	if list, ok := protocols[strings.ToLower(w.text)]; ok {
		return list
	}
	n, err := strconv.ParseUint(w.text, 10, 8)
	if err != nil || n == 0 {
		d.src.complain(w.at, "%q is no protocol: tcp, udp, icmp, sctp and the like, or a number from 1 to 255", w.text)
		return nil
	}
	return []uint8{uint8(n)}
}

// destination takes "WORD:PORTS" apart.
func (d *Document) destination(w word, protos []uint8) (destination, bool) {
	host, ports, ok := cutPorts(w.text)
	if !ok {
		d.src.complain(w.at, `%q does not say which ports: write "%s:22", "%s:80,443" or "%s:*"`, w.text, bracketed(w.text), bracketed(w.text), bracketed(w.text))
		return destination{}, false
	}
	ranges, ok := d.ports(w.at, ports, protos)
	return destination{word{host, w.at}, ranges}, ok
}

// bracketed is an address as it is written before a colon.
func bracketed(s string) string {
	if p, ok := parsePrefix(s); ok && p.Addr().Is6() {
		return "[" + s + "]"
	}
	return s
}

// cutPorts takes "WORD:PORTS" apart. What is an IPv6 address as a whole has no ports: where its last group could be
// taken for one, brackets are needed.
func cutPorts(s string) (host, ports string, ok bool) {
	if p, is := parsePrefix(s); is && p.Addr().Is6() {
		return "", "", false
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Trim(s[i+1:], "0123456789,-* ") != "" || s[i+1:] == "" {
		return "", "", false
	}
	host = s[:i]
	if inner, open := strings.CutPrefix(host, "["); open {
		// [fd00::1]:22, and [fd00::]/48:22 too
		address, rest, closed := strings.Cut(inner, "]")
		if host = address + rest; !closed {
			return "", "", false
		}
	}
	return host, s[i+1:], true
}

// ports reads "*", "22", "80,443" or "6000-6100". Of no protocol in particular they are TCP's and UDP's, and who may reach
// one may ping. All ports of no protocol in particular are everything: nil.
func (d *Document) ports(at place, s string, protos []uint8) ([]weft.PortRange, bool) {
	var out []weft.PortRange
	if s == "*" {
		for _, p := range protos {
			out = append(out, weft.PortRange{Proto: p, Last: 65535})
		}
		return out, true
	}
	for _, p := range protos {
		if !slices.Contains(withPorts, p) {
			d.src.complain(at, "%s has no ports: write * in place of %s", weft.ProtoName(p), s)
			return nil, false
		}
	}
	named := len(protos) > 0
	if !named {
		protos = []uint8{weft.ProtoTCP, weft.ProtoUDP}
	}
	for part := range strings.SplitSeq(s, ",") {
		r, err := weft.ParsePortRange("tcp:" + strings.TrimSpace(part))
		if err != nil || part == "*" {
			d.src.complain(at, "%q is no port and no range of ports: write 22, 80,443 or 6000-6100, or * for all", part)
			return nil, false
		}
		for _, p := range protos {
			out = append(out, weft.PortRange{Proto: p, First: r.First, Last: r.Last})
		}
	}
	if !named {
		out = append(out, weft.PortRange{Proto: weft.ProtoICMP, Last: 65535}, weft.PortRange{Proto: weft.ProtoICMPv6, Last: 65535})
	}
	return out, true
}

// readIP reads what a grant lets in: "*", "22", "tcp:443", "udp:6000-6100", "icmp:*". nil is everything.
func (d *Document) readIP(v *hujson.Value) []weft.PortRange {
	words := d.src.words(v, "ip")
	if len(words) == 0 {
		d.src.complain(at(v), `"ip" lets nothing in: write "*" for everything, or "tcp:443" and the like`)
	}
	var out []weft.PortRange
	all := false
	for _, w := range words {
		var protos []uint8
		ports := w.text
		if name, rest, ok := strings.Cut(w.text, ":"); ok {
			if ports = rest; name != "*" {
				protos = d.protos(&word{name, w.at})
			}
		}
		ranges, _ := d.ports(w.at, ports, protos)
		all = all || ports == "*" && protos == nil
		out = union(out, ranges)
	}
	if all {
		return nil
	}
	return out
}
