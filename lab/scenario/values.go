package scenario

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/lab/vnet"
)

// Bounds of single values.
const (
	maxDuration = MaxLimit
	maxRate     = 1e12    // bit/s
	maxQueue    = 1 << 30 // bytes
	maxPool     = 256     // public addresses of one router
	maxTable    = 1 << 20 // mappings
)

// A unit scales a number that stands before it.
type unit struct {
	name  string
	scale float64
}

var (
	rateUnits = []unit{{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}
	sizeUnits = []unit{{"MB", 1e6}, {"KB", 1e3}, {"B", 1}}
	timeUnits = []struct {
		name string
		d    time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}, {"ns", 1}}
)

const durationExpected = "a time such as 250ms, 1.5s or 2m, up to 24h"

func parseDuration(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	if err != nil && s != "" && strings.Trim(s, "0123456789.") == "" {
		return 0, false // without a unit it means nothing, 0 apart
	}
	return d, err == nil && d >= 0 && d <= maxDuration
}

func formatDuration(d time.Duration) string {
	for _, u := range timeUnits {
		if d%u.d == 0 {
			return strconv.FormatInt(int64(d/u.d), 10) + u.name
		}
	}
	return d.String()
}

func parseScaled(s string, units []unit, most float64) (float64, bool) {
	lower := strings.ToLower(s)
	for _, u := range units {
		if number, ok := strings.CutSuffix(lower, strings.ToLower(u.name)); ok {
			v, ok := parseNumber(number)
			v *= u.scale
			return v, ok && v <= most
		}
	}
	return 0, false
}

// formatScaled writes a value in the largest unit in which it comes back exactly.
func formatScaled(v float64, units []unit) string {
	for _, u := range units {
		s := strconv.FormatFloat(v/u.scale, 'f', -1, 64)
		if back, ok := parseNumber(s); v >= u.scale && ok && back*u.scale == v {
			return s + u.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + units[len(units)-1].name
}

// parseNumber reads digits with or without a point: no sign, no exponent, no infinity.
func parseNumber(s string) (float64, bool) {
	if s == "" || len(s) > 400 || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsInf(v, 0)
}

const (
	rateExpected  = "a rate such as 10mbit, 500kbit or 1gbit"
	shareExpected = "a share such as 5% or 0.05"
	sizeExpected  = "a number of bytes such as 64KB or 1500B"
)

func parseRate(s string) (float64, bool) {
	v, ok := parseScaled(s, rateUnits, maxRate)
	return v, ok && v > 0
}

func formatRate(v float64) string { return formatScaled(v, rateUnits) }

func parseSize(s string) (int, bool) {
	v, ok := parseScaled(s, sizeUnits, maxQueue)
	return int(v), ok && v >= 1 && v == float64(int(v))
}

func formatSize(v int) string { return formatScaled(float64(v), sizeUnits) }

func parseShare(s string) (float64, bool) {
	if number, ok := strings.CutSuffix(s, "%"); ok {
		v, ok := parseNumber(number)
		return v / 100, ok && v <= 100
	}
	v, ok := parseNumber(s)
	return v, ok && v <= 1
}

func formatShare(v float64) string {
	s := strconv.FormatFloat(math.Round(v*1e8)/1e6, 'f', -1, 64) + "%"
	if back, ok := parseShare(s); ok && back == v {
		return s
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func parseCount(s string, least, most int) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= least && n <= most && strconv.Itoa(n) == s
}

func parseYesNo(s string) (yes, ok bool) { return s == "yes", s == "yes" || s == "no" }

// A natName is a NAT by a name of its own.
type natName struct {
	name      string
	mapping   weft.Mapping
	filtering weft.Filtering
}

// natNames are RFC 3489's cones, and what does not translate, beside RFC 4787's MAPPING-FILTERING.
var natNames = []natName{
	{"none", weft.NoNAT, weft.FilteringUnknown},
	{"firewall", weft.NoNAT, weft.AddressAndPortDependentFiltering},
	{"full-cone", weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering},
	{"restricted-cone", weft.EndpointIndependentMapping, weft.AddressDependentFiltering},
	{"port-restricted-cone", weft.EndpointIndependentMapping, weft.AddressAndPortDependentFiltering},
	{"symmetric", weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering},
}

const natExpected = "a NAT: EIM, ADM or APDM, a dash, EIF, ADF or APDF (RFC 4787), as in EIM-APDF; " +
	"full-cone, restricted-cone, port-restricted-cone or symmetric (RFC 3489); firewall, none-ADF or none, which translate nothing"

func parseNAT(s string) (m weft.Mapping, f weft.Filtering, ok bool) {
	for _, n := range natNames {
		if n.name == s {
			return n.mapping, n.filtering, true
		}
	}
	for m = weft.NoNAT; m <= weft.AddressAndPortDependentMapping; m++ {
		for f = weft.EndpointIndependentFiltering; f <= weft.AddressAndPortDependentFiltering; f++ {
			if s == m.Abbreviation()+"-"+f.Abbreviation() {
				return m, f, true
			}
		}
	}
	return 0, 0, false
}

func formatNAT(m weft.Mapping, f weft.Filtering) string {
	for _, n := range natNames {
		if m == weft.NoNAT && n.mapping == m && n.filtering == f {
			return n.name
		}
	}
	return m.Abbreviation() + "-" + f.Abbreviation()
}

const portsExpected = "preserving, random, sequential, or sequential/N with a step N such as 2 or -1"

func parsePorts(s string) (a weft.Allocation, step int16, ok bool) {
	word, number, stepped := strings.Cut(s, "/")
	switch {
	case word == "sequential" && !stepped:
		return weft.SequentialAllocation, 1, true
	case word == "sequential":
		n, err := strconv.ParseInt(number, 10, 16)
		return weft.SequentialAllocation, int16(n), err == nil && n != 0
	case word == "preserving":
		return weft.PreservingAllocation, 0, !stepped
	case word == "random":
		return weft.RandomAllocation, 0, !stepped
	}
	return 0, 0, false
}

func formatPorts(a weft.Allocation, step int16) string {
	switch {
	case a == weft.SequentialAllocation && step == 1:
		return "sequential"
	case a == weft.SequentialAllocation:
		return fmt.Sprintf("sequential/%d", step)
	case a == weft.PreservingAllocation:
		return "preserving"
	}
	return "" // random is what a NAT does that says nothing
}

const publicExpected = "one or more IPv4 addresses with commas between them, of the internet unless the router is behind another"

func parsePublic(s string) (list []netip.Addr, ok bool) {
	for word := range strings.SplitSeq(s, ",") {
		a, err := netip.ParseAddr(word)
		if err != nil || !a.Is4() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() ||
			a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return nil, false
		}
		list = append(list, a)
	}
	return list, len(list) <= maxPool
}

func formatPublic(list []netip.Addr) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ",")
}

// Kernels are what a router can have the Linux kernel do, and what each amounts to in RFC 4787's words. Masquerade
// keeps ports where they are free and drops what nobody asked for, which makes it port-preserving and endpoint-
// independent in effect; --random draws a port for each connection; dnat opens a masquerade to one host.
var Kernels = []kernelNAT{
	{"masquerade", vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.PreservingAllocation}},
	{"random", vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}},
	{"dnat", vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering, Allocation: weft.PreservingAllocation}},
	{"firewall", vnet.NATConfig{Mapping: weft.NoNAT, Filtering: weft.AddressAndPortDependentFiltering}},
}

type kernelNAT struct {
	Name string
	NAT  vnet.NATConfig
}
