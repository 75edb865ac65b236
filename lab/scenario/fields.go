package scenario

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/lab/vnet"
)

// A field is one key=value of a statement about a T. The same table reads, writes and explains.
type field[T any] struct {
	key    string
	expect string                  // what a value looks like
	set    func(*T, string) bool   // false: that is no such value
	get    func(*T) (string, bool) // false: it is as if nothing were said
}

// fields are a statement's, and apply reads one word of it.
type fields[T any] []field[T]

func (list fields[T]) apply(to *T, word string, seen map[string]bool) (problem string) {
	key, value, ok := strings.Cut(word, "=")
	i := slices.IndexFunc(list, func(f field[T]) bool { return f.key == key })
	keys := make([]string, len(list))
	for n, f := range list {
		keys[n] = f.key
	}
	switch {
	case i < 0:
		return unknown(key, "key", keys)
	case !ok || value == "":
		return quoted(key) + " needs a value: " + key + "= and " + list[i].expect
	case seen[key]:
		return quoted(key) + " is said twice"
	case !list[i].set(to, value):
		return quoted(value) + " is no value of " + key + ": expected " + list[i].expect
	}
	seen[key] = true
	return ""
}

// format writes what differs from saying nothing.
func (list fields[T]) format(of *T) []string {
	var words []string
	for _, f := range list {
		if value, said := f.get(of); said {
			words = append(words, f.key+"="+value)
		}
	}
	return words
}

func durationField[T any](at func(*T) *time.Duration) (func(*T, string) bool, func(*T) (string, bool)) {
	return func(t *T, s string) (ok bool) {
			*at(t), ok = parseDuration(s)
			return ok
		}, func(t *T) (string, bool) {
			d := *at(t)
			return formatDuration(d), d != 0
		}
}

// yesField is a field that is yes or no, and no if nothing is said.
func yesField[T any](key string, at func(*T) *bool) field[T] {
	return field[T]{key, "yes or no", func(t *T, s string) (ok bool) {
		*at(t), ok = parseYesNo(s)
		return ok
	}, func(t *T) (string, bool) { return "yes", *at(t) }}
}

// timeField is a field that is a duration, and zero if nothing is said.
func timeField[T any](key string, at func(*T) *time.Duration) field[T] {
	set, get := durationField(at)
	return field[T]{key, durationExpected, set, get}
}

// countField is a field that is a whole number from least to most, and zero if nothing is said.
func countField[T any](key string, least, most int, at func(*T) *int) field[T] {
	return field[T]{key, "a whole number from " + strconv.Itoa(least) + " to " + strconv.Itoa(most),
		func(t *T, s string) (ok bool) {
			*at(t), ok = parseCount(s, least, most)
			return ok
		}, func(t *T) (string, bool) { return strconv.Itoa(*at(t)), *at(t) != 0 }}
}

// onField is what a thing is connected to.
func onField[T any](at func(*T) *string) field[T] {
	return field[T]{"on", "the name of a router, or " + Internet, func(t *T, s string) bool {
		*at(t) = s
		return validName(s) || s == Internet
	}, func(t *T) (string, bool) { return *at(t), true }}
}

var routerFields = append(fields[Router]{
	onField(func(r *Router) *string { return &r.On }),
	{"nat", natExpected, func(r *Router, s string) (ok bool) {
		r.NAT.Mapping, r.NAT.Filtering, ok = parseNAT(s)
		return ok
	}, func(r *Router) (string, bool) { return formatNAT(r.NAT.Mapping, r.NAT.Filtering), r.Kernel == "" }},
	{"kernel", "one of masquerade, random, dnat and firewall", func(r *Router, s string) bool {
		i := slices.IndexFunc(Kernels, func(k kernelNAT) bool { return k.Name == s })
		if i >= 0 {
			r.Kernel = s
		}
		return i >= 0
	}, func(r *Router) (string, bool) { return r.Kernel, r.Kernel != "" }},
	{"ports", portsExpected, func(r *Router, s string) (ok bool) {
		r.NAT.Allocation, r.NAT.Step, ok = parsePorts(s)
		return ok
	}, func(r *Router) (string, bool) {
		s := formatPorts(r.NAT.Allocation, r.NAT.Step)
		return s, s != "" && r.Kernel == ""
	}},
	yesField("hairpin", func(r *Router) *bool { return &r.NAT.Hairpin }),
	countField("pool", 1, maxPool, func(r *Router) *int { return &r.PoolSize }),
	{"public", publicExpected, func(r *Router, s string) (ok bool) {
		r.NAT.Public, ok = parsePublic(s)
		return ok
	}, func(r *Router) (string, bool) { return formatPublic(r.NAT.Public), len(r.NAT.Public) > 0 }},
	{"pooling", "paired or arbitrary", func(r *Router, s string) bool {
		if s == "arbitrary" {
			r.NAT.Pooling = vnet.ArbitraryPooling
		}
		return s == "paired" || s == "arbitrary"
	}, func(r *Router) (string, bool) { return "arbitrary", r.NAT.Pooling == vnet.ArbitraryPooling }},
	timeField("timeout", func(r *Router) *time.Duration { return &r.NAT.Timeout }),
	{"refresh", "outbound or both: which packets keep a mapping alive", func(r *Router, s string) bool {
		r.NAT.RefreshInbound = s == "both"
		return s == "both" || s == "outbound"
	}, func(r *Router) (string, bool) { return "both", r.NAT.RefreshInbound }},
	countField("mappings", 1, maxTable, func(r *Router) *int { return &r.NAT.MaxMappings }),
	countField("per-host", 1, maxTable, func(r *Router) *int { return &r.NAT.MaxPerHost }),
	timeField("late", func(r *Router) *time.Duration { return &r.NAT.OpensLate }),
	yesField("spoils", func(r *Router) *bool { return &r.NAT.Spoils }),
	{"udp", "blocked or passes", func(r *Router, s string) bool {
		r.NAT.BlockUDP = s == "blocked"
		return s == "blocked" || s == "passes"
	}, func(r *Router) (string, bool) { return "blocked", r.NAT.BlockUDP }},
	yesField("ipv6", func(r *Router) *bool { return &r.IPv6 }),
}, linkFields(func(r *Router) *Link { return &r.Link })...)

var hostFields = append(fields[Host]{
	{"on", placesExpected, func(h *Host, s string) (ok bool) {
		h.Places, ok = parsePlaces(s)
		if ok {
			h.On = h.Places[0].On
		}
		if len(h.Places) == 1 && h.Places[0].Metric == 0 {
			h.Places = nil
		}
		return ok
	}, func(h *Host) (string, bool) { return formatPlaces(h.Legs()), true }},
	yesField("ipv6", func(h *Host) *bool { return &h.IPv6 }),
	timeField("start", func(h *Host) *time.Duration { return &h.Start }),
	{"user", "the name of a user, who is made", func(h *Host, s string) bool {
		h.Member.User = s
		return validName(s)
	}, func(h *Host) (string, bool) { return h.Member.User, h.Member.User != "" }},
	{"tags", "tags without tag:, with commas between", func(h *Host, s string) bool {
		h.Member.Tags = strings.Split(s, ",")
		return !slices.ContainsFunc(h.Member.Tags, func(t string) bool { return !validName(t) })
	}, func(h *Host) (string, bool) { return strings.Join(h.Member.Tags, ","), len(h.Member.Tags) > 0 }},
	{"secret", secretExpected, func(h *Host, s string) bool {
		h.Member.Secret = s
		return validSecret(s)
	}, func(h *Host) (string, bool) { return h.Member.Secret, h.Member.Secret != "" }},
	{"address", "an address of the network, with its length: 10.0.0.10/16", func(h *Host, s string) (ok bool) {
		h.Member.Address, ok = parsePrefix(s)
		return ok && h.Member.Address.Addr().Is4()
	}, func(h *Host) (string, bool) { return h.Member.Address.String(), h.Member.Address.IsValid() }},
	yesField("rendezvous", func(h *Host) *bool { return &h.Rendezvous }),
}, linkFields(func(h *Host) *Link { return &h.Link })...)

var flowFields = fields[Flow]{
	{"every", durationExpected, func(f *Flow, s string) (ok bool) {
		f.Every, ok = parseDuration(s)
		return ok
	}, func(f *Flow) (string, bool) { return formatDuration(f.Every), f.Rate == 0 }},
	{"rate", rateExpected, func(f *Flow, s string) (ok bool) {
		f.Rate, ok = parseRate(s)
		return ok
	}, func(f *Flow) (string, bool) { return formatScaled(f.Rate, rateUnits), f.Rate != 0 }},
	countField("size", 1, 1400, func(f *Flow) *int { return &f.Size }),
	timeField("start", func(f *Flow) *time.Duration { return &f.Start }),
	timeField("for", func(f *Flow) *time.Duration { return &f.For }),
	{"over", "udp or tcp", func(f *Flow, s string) bool {
		f.TCP = s == "tcp"
		return s == "tcp" || s == "udp"
	}, func(f *Flow) (string, bool) { return "tcp", f.TCP }},
}

var setFields = linkFields(func(l *Link) *Link { return l })

// translates reports whether a router has addresses and ports to give.
func (r *Router) translates() bool { return r.NAT.Mapping != weft.NoNAT }
