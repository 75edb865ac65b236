package policy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft"
	"weft/policy"
)

// The oracle reads a document once more, by no code that the package has: line by line, as its words say, for one flow
// at a time. It knows the entries that drawn documents have.

type drawn struct {
	Groups map[string][]string `json:"groups"`
	Hosts  map[string]string   `json:"hosts"`
	Owners map[string][]string `json:"tagOwners"`
	ACLs   []drawnACL          `json:"acls"`
	Grants []drawnGrant        `json:"grants"`
}

type drawnACL struct {
	Action string   `json:"action"`
	Src    []string `json:"src"`
	Proto  string   `json:"proto,omitempty"`
	Dst    []string `json:"dst"`
}

type drawnGrant struct {
	Src []string `json:"src"`
	Dst []string `json:"dst"`
	IP  []string `json:"ip"`
}

func user(n weft.Node, name string) bool { return len(n.Tags) == 0 && n.User == name && name != "" }

// is reports whether a word means a node.
func (d drawn) is(word string, n weft.Node) bool {
	switch {
	case word == "*":
		return true
	case word == "autogroup:member":
		return len(n.Tags) == 0
	case word == "autogroup:tagged":
		return len(n.Tags) > 0
	case word == "group:eng@sso.example.org/realms/main":
		return user(n, "dan") || user(n, "eve")
	case strings.HasPrefix(word, "group:"):
		return slices.ContainsFunc(d.Groups[word], func(w string) bool { return d.is(w, n) })
	case strings.HasPrefix(word, "tag:"):
		return slices.Contains(n.Tags, word)
	}
	return user(n, word)
}

// contains reports whether a word is addresses, and an address is among them.
func (d drawn) contains(word string, a netip.Addr) bool {
	if h, ok := d.Hosts[word]; ok {
		word = h
	}
	if one, err := netip.ParseAddr(word); err == nil {
		return one == a
	}
	p, err := netip.ParsePrefix(word)
	return err == nil && p.Contains(a)
}

func (d drawn) from(list []string, f policy.Flow) bool {
	return slices.ContainsFunc(list, func(w string) bool { return d.is(w, f.Sender) || d.contains(w, f.From) })
}

func isPublic(a netip.Addr) bool {
	if a.Is4() {
		return !a.IsPrivate() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && a.As4()[0] != 0 && a.As4()[0] < 224 && !netip.MustParsePrefix("100.64.0.0/10").Contains(a)
	}
	return a.As16()[0]>>5 == 1
}

// to reports whether a word is about an address at a node that judges. dns says that only questions for names are meant.
func (d drawn) to(word string, at weft.Node, f policy.Flow, src []string) (meant, dns bool) {
	own := slices.Contains(at.Addrs, f.To)
	overlay := netip.MustParsePrefix("100.64.0.0/10").Contains(f.To) || netip.MustParsePrefix("fd00::/48").Contains(f.To)
	behind := !overlay && slices.ContainsFunc(at.Routes, func(p netip.Prefix) bool { return p.Contains(f.To) })
	switch word {
	case "*":
		return own || behind, false
	case "autogroup:self":
		mine := slices.ContainsFunc(src, func(w string) bool { return d.is(w, weft.Node{User: at.User}) })
		return own && mine && len(at.Tags) == 0 && len(f.Sender.Tags) == 0 && f.Sender.User == at.User, false
	case "autogroup:internet":
		exit := slices.ContainsFunc(at.Routes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() == f.To.Is4() })
		any := slices.ContainsFunc(at.Routes, func(p netip.Prefix) bool { return p.Bits() == 0 })
		if own && any {
			return true, true
		}
		return exit && isPublic(f.To), false
	}
	if d.contains(word, f.To) {
		return own || behind, false
	}
	return own && d.is(word, at), false
}

// ports judges "22", "80-90", "*", of a protocol by name or of none.
func ports(proto, list string, f policy.Flow) bool {
	icmp := f.Proto == weft.ProtoICMP || f.Proto == weft.ProtoICMPv6
	tcpOrUDP := f.Proto == weft.ProtoTCP || f.Proto == weft.ProtoUDP
	switch {
	case proto == "" && list == "*":
		return true
	case proto == "" && icmp:
		return true
	case proto == "" && !tcpOrUDP:
		return false
	case proto == "icmp" && !icmp, proto == "tcp" && f.Proto != weft.ProtoTCP, proto == "udp" && f.Proto != weft.ProtoUDP, proto == "47" && f.Proto != 47:
		return false
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, span := strings.Cut(part, "-")
		if !span {
			high = low
		}
		first, _ := strconv.Atoi(low)
		last, _ := strconv.Atoi(high)
		if part == "*" || int(f.Port) >= first && int(f.Port) <= last {
			return true
		}
	}
	return false
}

func (d drawn) allows(at weft.Node, f policy.Flow) bool {
	one := func(src []string, word string, about func() bool) bool {
		meant, dns := d.to(word, at, f, src)
		if !meant || !d.from(src, f) {
			return false
		}
		if dns {
			return f.Port == 53 && (f.Proto == weft.ProtoTCP || f.Proto == weft.ProtoUDP)
		}
		return about()
	}
	for _, a := range d.ACLs {
		for _, dst := range a.Dst {
			i := strings.LastIndexByte(dst, ':')
			word := strings.NewReplacer("[", "", "]", "").Replace(dst[:i])
			if one(a.Src, word, func() bool { return ports(a.Proto, dst[i+1:], f) }) {
				return true
			}
		}
	}
	for _, g := range d.Grants {
		for _, dst := range g.Dst {
			if one(g.Src, dst, func() bool {
				return slices.ContainsFunc(g.IP, func(ip string) bool {
					proto, list, ok := strings.Cut(ip, ":")
					if !ok {
						proto, list = "", ip
					}
					return ports(proto, list, f)
				})
			}) {
				return true
			}
		}
	}
	return false
}

// draw makes a document of words that the facts know.
func draw(t *rapid.T) drawn {
	d := drawn{
		Groups: map[string][]string{"group:a": {"ann", "bob"}, "group:b": {"bob", "group:eng@sso.example.org/realms/main"}, "group:none": {}},
		Hosts:  map[string]string{"printer": "192.168.7.9", "lan": "192.168.7.0/24", "six": "2001:db8:7::/64", "webhost": "100.64.0.10"},
		Owners: map[string][]string{"tag:web": {}, "tag:db": {}, "tag:exit": {}},
		ACLs:   []drawnACL{}, Grants: []drawnGrant{},
	}
	people := []string{"ann", "bob", "cid@example.org", "group:a", "group:b", "group:none", "group:eng@sso.example.org/realms/main", "autogroup:member"}
	places := []string{"printer", "lan", "six", "webhost", "10.1.0.0/16", "192.168.7.128/25", "100.64.0.0/16", "fd00::1", "0.0.0.0/0", "192.168.0.0/16"}
	tags := []string{"tag:web", "tag:db", "tag:exit", "autogroup:tagged", "*"}
	sources := slices.Concat(people, places, tags)
	destinations := slices.Concat(sources, []string{"autogroup:internet"})
	pick := func(what string, from []string) []string {
		return rapid.SliceOfN(rapid.SampledFrom(from), 1, 3).Draw(t, what)
	}
	bracket := func(w string) string {
		if a, err := netip.ParseAddr(w); err == nil && a.Is6() {
			return "[" + w + "]"
		}
		return w
	}
	for range rapid.IntRange(0, 4).Draw(t, "acls") {
		a := drawnACL{Action: "accept", Src: pick("src", sources)}
		from := destinations
		if rapid.IntRange(0, 3).Draw(t, "self") == 0 {
			a.Src, from = pick("people", people), []string{"autogroup:self"}
		}
		a.Proto = rapid.SampledFrom([]string{"", "", "tcp", "udp", "icmp", "47"}).Draw(t, "proto")
		list := []string{"*", "22", "80,443", "50-60"}
		if a.Proto == "icmp" || a.Proto == "47" {
			list = list[:1]
		}
		for _, w := range pick("dst", from) {
			a.Dst = append(a.Dst, bracket(w)+":"+rapid.SampledFrom(list).Draw(t, "ports"))
		}
		d.ACLs = append(d.ACLs, a)
	}
	for range rapid.IntRange(0, 3).Draw(t, "grants") {
		d.Grants = append(d.Grants, drawnGrant{pick("src", sources), pick("dst", destinations), pick("ip", []string{"*", "22", "tcp:443", "udp:50-60", "icmp:*", "tcp:*"})})
	}
	return d
}

// flows are all that nodes may begin towards one and what is behind it.
func flows(at weft.Node, yield func(f policy.Flow) bool) {
	w := world()
	kinds := []policy.Flow{{Proto: weft.ProtoTCP, Port: 22}, {Proto: weft.ProtoTCP, Port: 443}, {Proto: weft.ProtoUDP, Port: 53}, {Proto: weft.ProtoUDP, Port: 60}, {Proto: weft.ProtoTCP, Port: 9}, {Proto: weft.ProtoICMP}, {Proto: 47}}
	strange := []netip.Addr{netip.MustParseAddr("192.168.7.9"), netip.MustParseAddr("192.168.7.200"), netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("8.8.8.8"),
		netip.MustParseAddr("2001:db8:7::9"), netip.MustParseAddr("2001:4860::8"), netip.MustParseAddr("100.64.0.1")}
	for _, sender := range w {
		for _, to := range slices.Concat(at.Addrs, strange) {
			from := sender.Addrs[0]
			if to.Is6() {
				from = sender.Addrs[1]
			}
			for _, f := range kinds {
				f.Sender, f.From, f.To = sender, from, to
				if to.Is6() && f.Proto == weft.ProtoICMP {
					f.Proto = weft.ProtoICMPv6
				}
				if !yield(f) {
					return
				}
				if len(sender.Routes) == 2 && to.Is4() && sender.Routes[0].Bits() > 0 {
					f.From = netip.MustParseAddr("192.168.7.140") // somebody behind it
					if !yield(f) {
						return
					}
				}
			}
		}
	}
}

// owned are the rules of a class as those of one node.
func owned(shape []weft.Rule, n weft.Node) []weft.Rule {
	out := slices.Clone(shape)
	for i := range out {
		out[i].To = slices.Clone(out[i].To)
		for k, to := range out[i].To {
			own := n.Addrs[slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == (to == policy.OwnIPv4) })]
			out[i].To[k] = netip.PrefixFrom(own, own.BitLen())
		}
	}
	return out
}

func TestRulesSayOfEveryFlowWhatTheDocumentSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := draw(rt)
		text, err := json.Marshal(d)
		if err != nil {
			rt.Fatal(err)
		}
		p := compiled(t, string(text))
		rules := make(map[weft.NodeID][]weft.Rule)
		classes := make(map[string]string)
		for _, n := range world() {
			rules[n.ID] = p.Rules(n)
			if c := p.Class(n); c != "" {
				shape := p.Shape(n)
				if own := owned(shape, n); !slices.EqualFunc(own, rules[n.ID], weft.Rule.Equal) {
					rt.Fatalf("%s\nnode %d has the rules\n%v\nand by its class\n%v", text, n.ID, rules[n.ID], own)
				}
				said := fmt.Sprint(shape)
				if before, ok := classes[c]; ok && before != said {
					rt.Fatalf("%s\nnodes of the class %q have the rules\n%s\nand\n%s", text, c, before, said)
				}
				classes[c] = said
			}
		}
		names := slices.Sorted(maps.Keys(world()))
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 2, 2, rapid.ID[string]).Draw(rt, "judges") {
			at := world()[name]
			flows(at, func(f policy.Flow) bool {
				r, got := policy.Allows(rules[at.ID], at, f)
				if want := d.allows(at, f); got != want {
					rt.Fatalf("%s\nfrom %d (%s) to %s at %d, %s port %d: %v by %+v, and the document says %v", text, f.Sender.ID, f.From, f.To, at.ID, weft.ProtoName(f.Proto), f.Port, got, r, want)
				}
				return true
			})
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"acls": [{"action": "accept", "src": ["*"], "dst": ["*:*"]}]}`, `// x` + "\n" + `{"groups": {"group:a": ["ann@",],},}`,
		`{"grants": [{"src": ["tag:web"], "dst": ["autogroup:internet", "[fd00::1]"], "ip": ["tcp:1-2", "icmp:*"]}], "tagOwners": {"tag:web": ["autogroup:member"]}}`,
		`{"ipsets": {"ipset:a": ["10.0.0.0/8", "remove 10.0.0.1", "add ::/0"]}, "hosts": {"h": "::1"}}`,
		`{"tests": [{"src": "ann", "proto": "udp", "accept": ["bob:22", "autogroup:self:1"], "deny": ["1.2.3.4:5"]}]}`,
		`{"autoApprovers": {"routes": {"10.0.0.0/8": ["group:/admins@sso.example.org/realms/main"]}, "exitNode": ["ann"]}}`,
		`{"ssh": [], "é": "\u0000\ud800", "acls": null}`, `[[[[[[`, `{"a": "\`,
	} {
		f.Add(seed)
	}
	w := world()
	f.Fuzz(func(t *testing.T, text string) {
		d, problems := policy.Parse([]byte(text))
		if d == nil != policy.Refused(problems) {
			t.Fatalf("%q: a document %v, and %v", text, d != nil, problems)
		}
		lines := strings.Count(text, "\n") + 1
		if d != nil {
			var p *policy.Policy
			var more []policy.Problem
			p, more = d.Compile(facts)
			problems = append(problems, more...)
			for _, n := range w {
				for _, r := range p.Rules(n) {
					if len(r.From) == 0 || r.Why == "" || r.To != nil && len(r.To) == 0 {
						t.Fatalf("%q: the rule %+v", text, r)
					}
				}
			}
			// What is not named in it is not in it.
			if bare, _ := d.Compile(policy.Facts{}); len(bare.Rules(w["web"])) > len(p.Rules(w["web"])) {
				t.Fatalf("%q: fewer users give more rules", text)
			}
		}
		for _, problem := range problems {
			if problem.Line < 1 || problem.Line > lines || problem.Column < 1 || problem.Message == "" {
				t.Fatalf("%q: %+v", text, problem)
			}
		}
	})
}
