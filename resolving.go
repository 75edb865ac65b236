package weft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// DNS is how the nodes of a network resolve names that are not the overlay's. The zero value leaves everything to what
// each machine used before.
type DNS struct {
	// Upstreams answer what is nobody else's, in place of what each machine used before; empty: that.
	Upstreams []netip.AddrPort `json:"upstreams,omitempty"`
	// Split says who answers for a domain and all below it: "corp.example" -> resolvers. No resolvers: nobody; such a name
	// does not exist.
	Split map[string][]netip.AddrPort `json:"split,omitempty"`
	// Search are domains that short names are tried in after the network's own.
	Search []string `json:"search,omitempty"`
	// Records are names that an administrator wrote down.
	Records []DNSRecord `json:"records,omitempty"`
}

// A DNSRecord is a name with its addresses.
type DNSRecord struct {
	Name  string       `json:"name"` // "printer" is below the network's domain, "printer.example." is as written
	Addrs []netip.Addr `json:"addrs"`
}

// Equal compares every field.
func (d DNS) Equal(o DNS) bool {
	return slices.Equal(d.Upstreams, o.Upstreams) && slices.Equal(d.Search, o.Search) &&
		maps.EqualFunc(d.Split, o.Split, slices.Equal) &&
		slices.EqualFunc(d.Records, o.Records, func(a, b DNSRecord) bool { return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) })
}

// Bounds of a DNS. It is sent to every node, so it has to stay small; and systemd-resolved takes no more than 256 domains of
// one interface (LINK_SEARCH_DOMAINS_MAX), up to 137 of which are those of the overlay's reverse names.
const (
	maxResolvers = 8   // of one domain: no program asks more
	maxSplit     = 32  // domains
	maxSearch    = 5   // with the network's own six, which is all that old C libraries take (MAXDNSRCH)
	maxRecords   = 500 // some 35 kB
	maxComplete  = 32  // records that are not below the network's domain
	maxRecord    = 16  // addresses of one record
)

// Checked returns d as nodes get it, in lower case and sorted, or says what is wrong with it. domain is the network's.
func (d DNS) Checked(domain string) (DNS, error) {
	out := DNS{Upstreams: slices.Clone(d.Upstreams)}
	if err := checkResolvers(d.Upstreams); err != nil {
		return DNS{}, fmt.Errorf("upstreams: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Split)) {
		list := d.Split[name]
		clean, err := cleanDomain(name)
		switch _, twice := out.Split[clean]; {
		case err != nil:
			return DNS{}, fmt.Errorf("split: %w", err)
		case within(clean, domain):
			return DNS{}, fmt.Errorf("split: %s is below %s, which the nodes answer for themselves", clean, domain)
		case twice:
			return DNS{}, fmt.Errorf("split: %s is there twice", clean)
		case len(out.Split) == maxSplit:
			return DNS{}, fmt.Errorf("split: there are more than %d domains", maxSplit)
		}
		if err := checkResolvers(list); err != nil {
			return DNS{}, fmt.Errorf("split: %s: %w", clean, err)
		}
		if out.Split == nil {
			out.Split = make(map[string][]netip.AddrPort)
		}
		out.Split[clean] = append([]netip.AddrPort{}, list...)
	}
	if len(d.Search) > maxSearch {
		return DNS{}, fmt.Errorf("search: there are more than %d domains", maxSearch)
	}
	for _, name := range d.Search {
		clean, err := cleanDomain(name)
		switch {
		case err != nil:
			return DNS{}, fmt.Errorf("search: %w", err)
		case clean == domain || slices.Contains(out.Search, clean):
			continue // it is there
		}
		out.Search = append(out.Search, clean)
	}
	var err error
	out.Records, err = checkedRecords(d.Records, domain)
	return out, err
}

func checkedRecords(records []DNSRecord, domain string) ([]DNSRecord, error) {
	if len(records) > maxRecords {
		return nil, fmt.Errorf("records: there are more than %d", maxRecords)
	}
	var out []DNSRecord
	seen, complete := make(map[string]bool), 0
	for _, r := range records {
		name := strings.ToLower(r.Name)
		if n, ok := strings.CutSuffix(name, "."); ok && within(n, domain) && n != domain {
			name = strings.TrimSuffix(n, "."+domain) // the same in fewer words
		}
		bare, whole := strings.CutSuffix(name, ".")
		switch {
		case !isHostName(bare) || !whole && len(name)+1+len(domain) > maxHostName:
			return nil, fmt.Errorf("records: %q is no name: write printer for printer.%s, or printer.example. with a final dot", r.Name, domain)
		case seen[name]:
			return nil, fmt.Errorf("records: %s is there twice: write all of its addresses behind the one name", name)
		case len(r.Addrs) == 0 || len(r.Addrs) > maxRecord:
			return nil, fmt.Errorf("records: %s needs 1 to %d addresses", name, maxRecord)
		}
		if whole {
			if complete++; complete > maxComplete {
				return nil, fmt.Errorf("records: more than %d are not below %s", maxComplete, domain)
			}
		}
		seen[name] = true
		c := DNSRecord{Name: name}
		for _, a := range r.Addrs {
			if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
				return nil, fmt.Errorf("records: %s: %s is no address of a machine", name, a)
			}
			if !slices.Contains(c.Addrs, a) {
				c.Addrs = append(c.Addrs, a)
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b DNSRecord) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func checkResolvers(list []netip.AddrPort) error {
	if len(list) > maxResolvers {
		return fmt.Errorf("there are more than %d resolvers", maxResolvers)
	}
	for i, a := range list {
		switch {
		case !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() || a.Addr().Zone() != "":
			return fmt.Errorf("%s is no resolver: give IP or IP:PORT, for example 192.0.2.53", a)
		case a.Addr().IsLoopback():
			return fmt.Errorf("%s is each node itself: give an address that all of them reach", a)
		case slices.Contains(list[:i], a):
			return fmt.Errorf("%s is there twice", a)
		}
	}
	return nil
}

// CheckDomain says what is wrong with a domain that a network's nodes are to be found in.
func CheckDomain(domain string) error {
	clean, err := cleanDomain(domain)
	switch {
	case err != nil:
		return err
	case clean != domain:
		return fmt.Errorf("%q: write it as %s", domain, clean)
	case !strings.Contains(domain, "."):
		return fmt.Errorf("%s is a whole top-level domain: give one below it, for example home.%s", domain, domain)
	case within(domain, "local"):
		return fmt.Errorf("%s is looked up by multicast and not with us (RFC 6762): give another, for example home.internal", domain)
	case within(domain, "arpa"), within(domain, "localhost"), within(domain, "onion"):
		return fmt.Errorf("%s has a meaning of its own: give another, for example home.internal", domain)
	case len(domain) > maxHostName-1-MaxNameLength:
		return fmt.Errorf("%s leaves no room for names below it: give a shorter one", domain)
	}
	return nil
}

// cleanDomain returns a domain in lower case and without its final dot.
func cleanDomain(name string) (string, error) {
	clean := strings.ToLower(strings.TrimSuffix(name, "."))
	if !isHostName(clean) {
		return "", fmt.Errorf("%q is no domain: write it like corp.example", name)
	}
	return clean, nil
}

// within reports whether a name is a domain, or below it.
func within(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

// maxHostName is the longest name in bytes, without the final dot (RFC 1035 section 2.3.4).
const maxHostName = 253

// isHostName: RFC 1123 section 2.1 in lower case, and the underscore, which people use.
func isHostName(s string) bool {
	if len(s) > maxHostName {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > MaxNameLength || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}
