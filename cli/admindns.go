package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
	"weft/dns"
)

// What stands before the names in weft admin dns set.
const (
	splitPrefix  = "split."
	recordPrefix = "record."
)

// noResolver is the value of a split domain of which there are no names.
const noResolver = "none"

// maxNames is the longest document of names that is read, in bytes: the server takes less.
const maxNames = 1 << 20

func (ad *admin) dnsCommand() *cobra.Command {
	get := &cobra.Command{Use: "get", Short: "Show what the network resolves", Args: noArgs,
		Long: "Show what the network resolves, as `weft admin dns set` takes it; with --json as the document that `weft admin dns replace` takes.",
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := ad.client().DNS(c.Context())
			return show(ad, d, err, ad.printDNS)
		}}
	set := &cobra.Command{Use: "set KEY=VALUE...", Short: "Change what the network resolves, and nothing else of it", Args: args(1, 1000),
		Long: `Change what is named and leave the rest as it is; all of it or nothing. Every node is told at once.

  domain            the domain that nodes are found in, NAME.DOMAIN (default ` + weft.Domain + `)
  upstreams         resolvers, IP or IP:PORT with commas between, of all names that nobody else answers for; empty for those that
                    each machine used before
  split.DOMAIN      resolvers of a domain and all below it; "none": there are no such names; empty for no longer
  search            domains that short names are tried in after the network's own, with commas between
  record.NAME       addresses of NAME.DOMAIN, or with a final dot of just that name; empty for no longer`,
		RunE: func(c *cobra.Command, list []string) error {
			changes := make([]func(*control.DNSRequest), len(list))
			for i, arg := range list {
				var err error
				if changes[i], err = nameSetting(arg); err != nil {
					return usageError{err}
				}
			}
			d, err := ad.changeNames(c, changes)
			return show(ad, d, err, ad.printDNS)
		}}
	replace := &cobra.Command{Use: "replace FILE", Short: "Replace what the network resolves by a document; - reads standard input", Args: args(1, 1),
		Long: "Replace all that the network resolves by a JSON document, as `weft admin dns get --json` prints it; - reads standard input.\n" +
			"With the revision still in it, it is refused if somebody else has changed something meanwhile.",
		RunE: func(c *cobra.Command, list []string) error {
			r, err := readNames(ad.in, list[0])
			if err != nil {
				return err
			}
			d, err := ad.client().SetDNS(c.Context(), r)
			return show(ad, d, err, ad.printDNS)
		}}
	return group("dns", "Names: the nodes' domain, resolvers, records", get, set, replace)
}

// changeNames applies changes to what is there, again where somebody else was quicker.
func (ad *admin) changeNames(c *cobra.Command, changes []func(*control.DNSRequest)) (control.DNSAnswer, error) {
	for {
		d, err := ad.client().DNS(c.Context())
		if err != nil {
			return d, err
		}
		r := control.DNSRequest{DNSDocument: d.DNSDocument, Revision: d.Revision}
		for _, change := range changes {
			change(&r)
		}
		d, err = ad.client().SetDNS(c.Context(), r)
		if weft.CodeOf(err) != weft.CodeConflict || c.Context().Err() != nil {
			return d, err
		}
	}
}

// nameSetting reads KEY=VALUE of weft admin dns set.
func nameSetting(arg string) (func(*control.DNSRequest), error) {
	k, v, ok := strings.Cut(arg, "=")
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is no setting: give KEY=VALUE, for example upstreams=192.0.2.53", quote(arg))
	case k == "domain":
		return func(r *control.DNSRequest) { r.Domain = v }, nil
	case k == "search":
		return func(r *control.DNSRequest) { r.Search = words(v) }, nil
	case k == "upstreams":
		list, err := resolvers(v)
		return func(r *control.DNSRequest) { r.Upstreams = list }, err
	case strings.HasPrefix(k, splitPrefix):
		return splitSetting(canonical(k[len(splitPrefix):]), v)
	case strings.HasPrefix(k, recordPrefix):
		return recordSetting(strings.ToLower(k[len(recordPrefix):]), v)
	}
	return nil, fmt.Errorf("%s is no setting: give one of domain, upstreams, search, %sDOMAIN, %sNAME", quote(k), splitPrefix, recordPrefix)
}

func canonical(domain string) string { return strings.ToLower(strings.TrimSuffix(domain, ".")) }

func splitSetting(domain, v string) (func(*control.DNSRequest), error) {
	list := []netip.AddrPort{}
	if v != noResolver {
		var err error
		if list, err = resolvers(v); err != nil {
			return nil, err
		}
	}
	return func(r *control.DNSRequest) {
		split := maps.Clone(r.Split)
		if split == nil {
			split = make(map[string][]netip.AddrPort)
		}
		if split[domain] = list; v == "" {
			delete(split, domain)
		}
		r.Split = split
	}, nil
}

func recordSetting(name, v string) (func(*control.DNSRequest), error) {
	var addrs []netip.Addr
	for _, w := range words(v) {
		a, err := netip.ParseAddr(w)
		if err != nil {
			return nil, fmt.Errorf("%s is no address: give IPv4 and IPv6 addresses with commas between, for example 192.0.2.9", quote(w))
		}
		addrs = append(addrs, a)
	}
	return func(r *control.DNSRequest) {
		records := slices.DeleteFunc(slices.Clone(r.Records), func(x weft.DNSRecord) bool { return x.Name == name })
		if v != "" {
			records = append(records, weft.DNSRecord{Name: name, Addrs: addrs})
		}
		r.Records = records
	}, nil
}

// words are what stands between commas.
func words(v string) []string {
	return slices.DeleteFunc(strings.Split(v, ","), func(w string) bool { return w == "" })
}

// resolvers reads IP or IP:PORT.
func resolvers(v string) ([]netip.AddrPort, error) {
	var list []netip.AddrPort
	for _, w := range words(v) {
		a, err := netip.ParseAddrPort(w)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(w); err == nil {
				a = netip.AddrPortFrom(addr, dns.Port)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s is no resolver: give IP or IP:PORT, for example 192.0.2.53", quote(w))
		}
		list = append(list, a)
	}
	return list, nil
}

// readNames reads a document of names; what get --json adds to it may be there.
func readNames(in io.Reader, file string) (r control.DNSRequest, err error) {
	b, err := readDocument(in, "the document", file, maxNames)
	if err != nil {
		return r, err
	}
	var answer control.DNSAnswer
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err = d.Decode(&answer); err == nil && d.Decode(new(json.RawMessage)) != io.EOF {
		err = errors.New("there is more than one document")
	}
	if err != nil {
		return r, fmt.Errorf("this is no document of names (line %d): %w; `weft admin dns get --json` prints one", 1+bytes.Count(b[:min(d.InputOffset(), int64(len(b)))], []byte("\n")), err)
	}
	if answer.Schema > weft.SchemaVersion {
		return r, fmt.Errorf("this document is of a newer weft: its schema_version is %d", answer.Schema)
	}
	return control.DNSRequest{DNSDocument: answer.DNSDocument, Revision: answer.Revision}, nil
}

// printDNS prints the document as set takes it.
func (ad *admin) printDNS(d control.DNSAnswer) {
	fmt.Fprintf(ad.out, "domain=%s\nupstreams=%s\nsearch=%s\n", d.Domain, joinResolvers(d.Upstreams), strings.Join(d.Search, ","))
	for _, domain := range slices.Sorted(maps.Keys(d.Split)) {
		fmt.Fprintf(ad.out, "%s%s=%s\n", splitPrefix, domain, cmp.Or(joinResolvers(d.Split[domain]), noResolver))
	}
	for _, r := range d.Records {
		fmt.Fprintf(ad.out, "%s%s=%s\n", recordPrefix, r.Name, strings.ReplaceAll(joinAddrs(r.Addrs), ", ", ","))
	}
}

func joinResolvers(list []netip.AddrPort) string {
	out := make([]string, len(list))
	for i, a := range list {
		if out[i] = a.String(); a.Port() == dns.Port {
			out[i] = a.Addr().String()
		}
	}
	return strings.Join(out, ",")
}
