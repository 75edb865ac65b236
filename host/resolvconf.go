package host

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The text of resolv.conf(5), as glibc reads it: a keyword at the start of a
// line, of "domain" and "search" the last one counts, of "nameserver" the first
// three. Nothing here touches a file.

const (
	// resolvHeader begins every line of comment that we put into a resolv.conf,
	// and no other: it is how a file of ours is known.
	resolvHeader = "# weft: "

	// maxNameservers is MAXNS of glibc's resolv.h.
	maxNameservers = 3
)

// takeover is what our resolv.conf says.
type takeover struct {
	iface      string
	server     netip.Addr
	search     []string // after what the former file searches
	keptAs     string   // where the former file is for a person to find, may be ""
	hostDomain string   // what glibc searches when the file says nothing: the host name's domain
}

// resolvLines yields the lines of a resolv.conf with their keyword and values.
func resolvLines(text []byte) []resolvLine {
	var out []resolvLine
	for line := range bytes.Lines(text) {
		s := strings.TrimRight(string(line), "\r\n")
		l := resolvLine{text: s}
		f := strings.Fields(s)
		if len(f) > 0 && strings.HasPrefix(s, f[0]) && f[0][0] != '#' && f[0][0] != ';' {
			l.keyword, l.values = f[0], f[1:]
		}
		out = append(out, l)
	}
	return out
}

type resolvLine struct {
	text    string
	keyword string // "" for a comment
	values  []string
}

// nameserver is the server that a line names.
func (l resolvLine) nameserver() (netip.Addr, bool) {
	if l.keyword != "nameserver" || len(l.values) == 0 {
		return netip.Addr{}, false
	}
	v, _, _ := strings.Cut(l.values[0], "#")
	v, _, _ = strings.Cut(v, ";")
	a, err := netip.ParseAddr(v)
	return a, err == nil
}

// nameservers are the servers that a resolv.conf names, without those to leave out.
func nameservers(text []byte, without ...netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, l := range resolvLines(text) {
		if a, ok := l.nameserver(); ok && !slices.Contains(without, a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// searchList is the search list in force, and whether the file sets one.
func searchList(lines []resolvLine) (list []string, set bool) {
	for _, l := range lines {
		switch {
		case len(l.values) == 0:
		case l.keyword == "domain":
			list, set = l.values[:1], true
		case l.keyword == "search":
			list, set = l.values, true
		}
	}
	return list, set
}

// render is our resolv.conf in place of the given one. Our server comes first, the
// former ones behind it: should we die, resolving gets slow, not impossible.
// Options stay, except for "rotate", which would send every second question past
// us. Ours end the search list, so that a short name means what it meant.
func (t takeover) render(former []byte) []byte {
	lines := resolvLines(former)
	search, set := searchList(lines)
	if !set && t.hostDomain != "" {
		search = []string{t.hostDomain}
	}
	search = slices.Clone(search)
	before := len(search)
	for _, d := range t.search {
		if !isReverse(d) && !slices.Contains(search, d) {
			search = append(search, d)
		}
	}
	own, others := layer{t.iface, t.server, search[before:]}, layers(former)
	for i, l := range others {
		if l.iface == t.iface { // it is ours already
			own.search = append(l.search, own.search...)
			others = slices.Delete(others, i, i+1)
			break
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s: this file sends questions to weft, which puts the former one back when it stops\n",
		resolvHeader, t.iface)
	if t.keptAs != "" {
		fmt.Fprintf(&b, "%sthe former file is %s\n", resolvHeader, t.keptAs)
	}
	for _, l := range append([]layer{own}, others...) {
		fmt.Fprintln(&b, l)
	}
	fmt.Fprintf(&b, "nameserver %s\n", t.server)
	for i, a := range nameservers(former, t.server) {
		if i+1 < maxNameservers+len(others) { // what is pushed out is needed when they leave
			fmt.Fprintf(&b, "nameserver %s\n", a)
		}
	}
	if len(search) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(search, " "))
	}
	for _, l := range lines {
		switch l.keyword {
		case "domain", "search":
		case "nameserver":
			if _, ok := l.nameserver(); !ok {
				fmt.Fprintln(&b, l.text)
			}
		case "options":
			if v := slices.DeleteFunc(slices.Clone(l.values), func(o string) bool { return o == "rotate" }); len(v) > 0 {
				fmt.Fprintf(&b, "options %s\n", strings.Join(v, " "))
			}
		default:
			if !strings.HasPrefix(l.text, resolvHeader) {
				fmt.Fprintln(&b, l.text)
			}
		}
	}
	return b.Bytes()
}

// strip takes our lines out of a resolv.conf that somebody edited while it was ours.
// Where that leaves no server, those of the former file take our place.
func (t takeover) strip(edited, former []byte) []byte {
	var b bytes.Buffer
	if len(nameservers(edited, t.server)) == 0 {
		for _, a := range nameservers(former, t.server) {
			fmt.Fprintf(&b, "nameserver %s\n", a)
		}
	}
	iface, _ := writtenFor(edited)
	for _, l := range resolvLines(edited) {
		if x, ok := layerOf(l.text); ok && x.iface == t.iface || !ok && iface == t.iface && strings.HasPrefix(l.text, resolvHeader) {
			continue
		}
		if a, ok := l.nameserver(); ok && a == t.server {
			continue
		}
		if l.keyword == "search" && len(l.values) > 0 {
			v := slices.DeleteFunc(slices.Clone(l.values), func(d string) bool { return slices.Contains(t.search, d) })
			if len(v) < len(l.values) {
				if len(v) > 0 {
					fmt.Fprintf(&b, "search %s\n", strings.Join(v, " "))
				}
				continue
			}
		}
		fmt.Fprintln(&b, l.text)
	}
	return b.Bytes()
}

// writtenFor is the interface that a file of ours was written for, as its first line
// says.
func writtenFor(text []byte) (iface string, ok bool) {
	rest, ok := bytes.CutPrefix(text, []byte(resolvHeader))
	if !ok {
		return "", false
	}
	name, _, ok := bytes.Cut(rest, []byte(":"))
	return string(name), ok && !bytes.ContainsAny(name, " /\n") // it becomes part of a file's name
}

// A layer is an overlay that is in a resolv.conf: the one that wrote it, or one that had written the former file. It is a line
// of comment, by which the lines that are its can be told even when its record is not to be had.
type layer struct {
	iface  string
	server netip.Addr
	search []string
}

func (l layer) String() string {
	return strings.Join(append([]string{resolvHeader + l.iface, "is", "at", l.server.String(), "and", "searches"}, l.search...), " ")
}

// layerOf reads a line of comment.
func layerOf(line string) (layer, bool) {
	rest, ours := strings.CutPrefix(line, resolvHeader)
	f := strings.Fields(rest)
	if !ours || len(f) < 6 || !slices.Equal([]string{f[1], f[2], f[4], f[5]}, []string{"is", "at", "and", "searches"}) {
		return layer{}, false
	}
	server, err := netip.ParseAddr(f[3])
	return layer{f[0], server, f[6:]}, err == nil && !strings.Contains(f[0], "/")
}

// layers are the overlays that are in a resolv.conf, the last first.
func layers(text []byte) (out []layer) {
	for _, line := range resolvLines(text) {
		if l, ok := layerOf(line.text); ok {
			out = append(out, l)
		}
	}
	return out
}

// names reports whether a resolv.conf sends questions to our server, or to another overlay's that knows us.
func (t takeover) names(text []byte) bool {
	for _, l := range resolvLines(text) {
		if x, ok := layerOf(l.text); ok && x.iface == t.iface && x.server == t.server {
			return true
		}
		if a, ok := l.nameserver(); ok && a == t.server {
			return true
		}
	}
	return false
}

func isReverse(domain string) bool {
	d := strings.TrimSuffix(strings.ToLower(domain), ".")
	return d == "arpa" || strings.HasSuffix(d, ".arpa")
}

// overlay is what a file of content old holds when content was written over its
// start and the write was cut off before the file was shortened.
func overlay(content, old []byte) []byte {
	if len(content) >= len(old) {
		return content
	}
	return slices.Concat(content, old[len(content):])
}
