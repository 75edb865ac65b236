package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"weft"
)

// A Document is a text as it was understood. Names in it may still be nobody's.
type Document struct {
	src     source
	groups  map[string]*group
	hosts   map[string]host
	ipsets  map[string]*ipset
	owners  map[string][]word // of tags
	grants  []grant
	routers []approver
	exits   []word
	trials  []trial
}

type (
	group struct {
		members []word
		at      place
	}
	host struct {
		prefix netip.Prefix
		at     place
	}
	// An ipset is prefixes that are added and taken away, one after the other.
	ipset struct {
		steps    []step
		prefixes []netip.Prefix
		at       place
	}
	step struct {
		remove bool
		what   word
	}
	// A grant is one entry of acls or grants.
	grant struct {
		why string
		src []word
		dst []destination
	}
	// A destination is a word and what may be reached there; no ports: all.
	destination struct {
		word
		ports []weft.PortRange
	}
	// An approver says who may have networks within a prefix without being asked.
	approver struct {
		prefix netip.Prefix
		who    []word
	}
	// A trial is one entry of tests.
	trial struct {
		src          word
		protos       []uint8
		accept, deny []word
	}
)

// Parse reads a document. Every problem is told, in the order of the text; with one that is no warning there is no
// document.
func Parse(text []byte) (*Document, []Problem) {
	d := &Document{src: *newSource(text), groups: map[string]*group{}, hosts: map[string]host{}, ipsets: map[string]*ipset{}, owners: map[string][]word{}}
	s := &d.src
	if v, ok := s.parse(); ok {
		for _, f := range s.object(&v, "a policy") {
			d.section(f)
		}
		d.fillSets()
	}
	problems := slices.Clip(s.sorted())
	if Refused(problems) {
		return nil, problems
	}
	return d, problems
}

// Refused reports whether one of the problems keeps a document from being taken.
func Refused(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return !p.Warning })
}

// A section is what may stand at the top of a document.
type section struct {
	name string
	read func(*Document, *hujson.Value)
}

var sections = []section{
	{"acls", (*Document).readACLs},
	{"autoApprovers", (*Document).readApprovers},
	{"grants", (*Document).readGrants},
	{"groups", (*Document).readGroups},
	{"hosts", (*Document).readHosts},
	{"ipsets", (*Document).readSets},
	{"tagOwners", (*Document).readOwners},
	{"tests", (*Document).readTests},
}

// without are sections of this grammar that weft has nothing for. To leave them out gives nobody more than is written
// elsewhere, so they are a warning.
var without = map[string]string{
	"ssh":                 "weft has no SSH server of its own: let tcp:22 in where somebody's is to be reached",
	"sshtests":            "weft has no SSH server of its own",
	"nodeattrs":           "nodes have no attributes: `weft set` on a machine sets what that machine does",
	"postures":            "weft asks no machine about its state",
	"derpmap":             "relays are members of the network: `weft admin relay list`",
	"disableipv4":         "a node has an IPv4 and an IPv6 address",
	"onecgnatroute":       "which routes a node has is not a matter of policy",
	"randomizeclientport": "a node's port is its own: `weft set port=...`",
	"extradnsrecords":     "names are in a document of their own: `weft admin dns`",
}

// section reads what stands under a name at the top.
func (d *Document) section(f field) {
	for _, known := range sections {
		if f.is(known.name) {
			known.read(d, f.value)
			return
		}
	}
	if why, ok := without[strings.ToLower(f.name.text)]; ok {
		d.src.warn(f.name.at, "%q is left out of account: %s", f.name.text, why)
		return
	}
	if f.is("defaultSrcPosture") {
		d.src.complain(f.name.at, "%q would bind every rule to what weft cannot ask a machine: take it out, and think of who may then do what", f.name.text)
		return
	}
	var names []string
	for _, known := range sections {
		names = append(names, known.name)
	}
	d.src.complain(f.name.at, "%q is no part of a policy: it has %s", f.name.text, strings.Join(names, ", "))
}

func (d *Document) readGroups(v *hujson.Value) {
	for _, f := range d.src.object(v, "groups") {
		name, ok := strings.CutPrefix(f.name.text, "group:")
		if !ok || name == "" || strings.Contains(name, "@") {
			d.src.complain(f.name.at, `%q cannot be a group: write "group:NAME", without an @`, f.name.text)
			continue
		}
		d.groups[f.name.text] = &group{d.src.words(f.value, "the members of a group"), f.name.at}
	}
}

func (d *Document) readHosts(v *hujson.Value) {
	for _, f := range d.src.object(v, "hosts") {
		w, ok := d.src.word(f.value, "a host's address")
		if !ok {
			continue
		}
		p, ok := parsePrefix(w.text)
		switch {
		case !ok:
			d.src.complain(w.at, "%q is no address and no prefix: write 192.0.2.7 or 192.0.2.0/24", w.text)
		case strings.ContainsAny(f.name.text, ":*/@, ") || f.name.text == "":
			d.src.complain(f.name.at, "%q cannot be a host's name: no : * / @ , or space may be in it", f.name.text)
		default:
			d.hosts[f.name.text] = host{p, f.name.at}
		}
	}
}

func (d *Document) readOwners(v *hujson.Value) {
	for _, f := range d.src.object(v, "tagOwners") {
		name, ok := strings.CutPrefix(f.name.text, "tag:")
		if !ok || weft.CleanName(name) != name || name == "" {
			d.src.complain(f.name.at, `%q cannot be a tag: write "tag:NAME", of lower-case letters, digits and single hyphens in between`, f.name.text)
			continue
		}
		d.owners[f.name.text] = d.src.words(f.value, "the owners of a tag")
	}
}

// needs complains of a field that is missing.
func (d *Document) needs(has bool, v *hujson.Value, what, name string) {
	if !has {
		d.src.complain(at(v), "%s has no %q", what, name)
	}
}

func (d *Document) readACLs(v *hujson.Value) {
	for i, e := range d.src.list(v, "acls") {
		g := grant{why: fmt.Sprintf("acls[%d], line %d", i, d.src.line(at(e)))}
		var proto *word
		var dst []word
		action, src, to := false, false, false
		for _, f := range d.src.object(e, "an entry of acls") {
			switch {
			case f.is("action"):
				action = true
				if w, ok := d.src.word(f.value, "action"); ok && w.text != "accept" {
					d.src.complain(w.at, `action is %q, and can only be "accept": what nothing accepts is refused`, w.text)
				}
			case f.is("src") || f.is("users"):
				g.src, src = d.src.words(f.value, "src"), true
			case f.is("dst") || f.is("ports"):
				dst, to = d.src.words(f.value, "dst"), true
			case f.is("proto"):
				if w, ok := d.src.word(f.value, "proto"); ok {
					proto = &w
				}
			default:
				d.unknown(f, "an entry of acls", "action, src, proto and dst")
			}
		}
		d.needs(action, e, "this entry of acls", "action")
		d.needs(src, e, "this entry of acls", "src")
		d.needs(to, e, "this entry of acls", "dst")
		protos := d.protos(proto)
		for _, w := range dst {
			if x, ok := d.destination(w, protos); ok {
				g.dst = append(g.dst, x)
			}
		}
		d.grants = append(d.grants, g)
	}
}

func (d *Document) readGrants(v *hujson.Value) {
	for i, e := range d.src.list(v, "grants") {
		g := grant{why: fmt.Sprintf("grants[%d], line %d", i, d.src.line(at(e)))}
		var ports []weft.PortRange
		var dst []word
		src, to, ip := false, false, false
		for _, f := range d.src.object(e, "an entry of grants") {
			switch {
			case f.is("src"):
				g.src, src = d.src.words(f.value, "src"), true
			case f.is("dst"):
				dst, to = d.src.words(f.value, "dst"), true
			case f.is("ip"):
				ports, ip = d.readIP(f.value), true
			default:
				d.unknown(f, "an entry of grants", "src, dst and ip")
			}
		}
		d.needs(src, e, "this entry of grants", "src")
		d.needs(to, e, "this entry of grants", "dst")
		d.needs(ip, e, "this entry of grants", "ip")
		for _, w := range dst {
			g.dst = append(g.dst, destination{w, ports})
		}
		d.grants = append(d.grants, g)
	}
}

// unknown complains of a field that an entry does not have. What other programs would have asked for there, weft must
// not act as if it had not been asked.
func (d *Document) unknown(f field, what, has string) {
	switch {
	case f.is("app"):
		d.src.complain(f.name.at, `"app" grants what programs make of it, and none of weft's does: write what is to be reached into "ip"`)
	case f.is("via"):
		d.src.complain(f.name.at, `"via" is not for weft: each machine chooses its exit node, and of several routers the first that is reachable is used`)
	case f.is("srcPosture") || f.is("srcPostureAttrs"):
		d.src.complain(f.name.at, "%q asks what weft cannot ask a machine: take it out, and think of who may then do what", f.name.text)
	default:
		d.src.complain(f.name.at, "%q is no part of %s: it has %s", f.name.text, what, has)
	}
}

func (d *Document) readApprovers(v *hujson.Value) {
	for _, f := range d.src.object(v, "autoApprovers") {
		switch {
		case f.is("exitNode"):
			d.exits = d.src.words(f.value, "exitNode")
		case f.is("routes"):
			for _, r := range d.src.object(f.value, "routes") {
				who := d.src.words(r.value, "the approved of a route")
				if p, ok := parsePrefix(r.name.text); ok {
					d.routers = append(d.routers, approver{p, who})
				} else {
					d.src.complain(r.name.at, "%q is no network: write 192.168.7.0/24", r.name.text)
				}
			}
		default:
			d.unknown(f, "autoApprovers", "routes and exitNode")
		}
	}
}

func (d *Document) readTests(v *hujson.Value) {
	for _, e := range d.src.list(v, "tests") {
		t := trial{protos: []uint8{weft.ProtoTCP, weft.ProtoUDP}}
		src := false
		for _, f := range d.src.object(e, "a test") {
			switch {
			case f.is("src"):
				t.src, src = d.src.word(f.value, "src")
			case f.is("proto"):
				if w, ok := d.src.word(f.value, "proto"); ok && w.text != "" {
					t.protos = d.protos(&w)
				}
			case f.is("accept"):
				t.accept = d.src.words(f.value, "accept")
			case f.is("deny"):
				t.deny = d.src.words(f.value, "deny")
			default:
				d.unknown(f, "a test", "src, proto, accept and deny")
			}
		}
		d.needs(src, e, "this test", "src")
		if len(t.accept)+len(t.deny) == 0 {
			d.src.complain(at(e), `this test asks nothing: it has neither "accept" nor "deny"`)
		}
		d.trials = append(d.trials, t)
	}
}

func (d *Document) readSets(v *hujson.Value) {
	for _, f := range d.src.object(v, "ipsets") {
		if name, ok := strings.CutPrefix(f.name.text, "ipset:"); !ok || name == "" {
			d.src.complain(f.name.at, `%q cannot be a set of addresses: write "ipset:NAME"`, f.name.text)
			continue
		}
		set := &ipset{at: f.name.at}
		for _, w := range d.src.words(f.value, "a set of addresses") {
			st := step{what: w}
			if rest, ok := strings.CutPrefix(w.text, "add "); ok {
				st.what.text = rest
			} else if rest, ok := strings.CutPrefix(w.text, "remove "); ok {
				st.what.text, st.remove = rest, true
			}
			set.steps = append(set.steps, st)
		}
		d.ipsets[f.name.text] = set
	}
}

// fillSets works out what is in the sets of addresses.
func (d *Document) fillSets() {
	for _, name := range slices.Sorted(maps.Keys(d.ipsets)) {
		set := d.ipsets[name]
		for _, st := range set.steps {
			p, ok := parsePrefix(st.what.text)
			if h, known := d.hosts[strings.TrimPrefix(st.what.text, "host:")]; !ok && known {
				p, ok = h.prefix, true
			}
			switch {
			case !ok:
				d.src.complain(st.what.at, `%q is not what a set is made of: an address, a prefix or a host, with "add " or "remove " before it`, st.what.text)
			case st.remove:
				set.prefixes = exclude(set.prefixes, p)
			case !slices.Contains(set.prefixes, p):
				set.prefixes = append(set.prefixes, p)
			}
			if len(set.prefixes) > maxPrefixes {
				d.src.complain(set.at, "%s has more than the %d prefixes that it may have", name, maxPrefixes)
				return
			}
		}
	}
}

// maxPrefixes bounds a set of addresses: taking one address away from a network makes up to 128 networks of it.
const maxPrefixes = 4096
