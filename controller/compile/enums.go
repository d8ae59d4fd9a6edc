package compile

import (
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// The config's words in the plan's, by the names of the plan's values: a further value
// needs no line here. A test holds that the schema takes no others. Without a word it is
// the first value.
var (
	modes        = wordsOf[config.Mode, planv1.Mode]()
	affinities   = wordsOf[config.Affinity, planv1.Affinity]()
	encaps       = wordsOf[config.Encap, planv1.Encap]()
	onDowns      = wordsOf[config.OnDown, planv1.OnDown]()
	whenNones    = wordsOf[config.WhenNone, planv1.WhenNone]()
	unmatcheds   = wordsOf[config.Unmatched, planv1.Unmatched]()
	protocols    = wordsOf[config.Protocol, planv1.Protocol]()
	fragments    = wordsOf[config.Fragments, planv1.Fragments]()
	steerings    = wordsOf[config.Steering, planv1.Steering]()
	drivers      = wordsOf[config.Driver, planv1.Driver]()
	kernelCaches = wordsOf[config.KernelCache, planv1.KernelCache]()
)

type enum interface {
	~int32
	protoreflect.Enum
}

// wordsOf the plan's enum: `af_xdp` is DRIVER_AF_XDP of Driver.
func wordsOf[Word ~string, Plan enum]() map[Word]Plan {
	words := map[Word]Plan{}
	values := Plan(0).Descriptor().Values()
	for i := range values.Len() {
		value := Plan(values.Get(i).Number())
		words[Word(wordOf(value))] = value
	}
	return words
}

// wordOf a value: its name without the enum's, in small letters.
func wordOf(value protoreflect.Enum) string {
	enum := value.Descriptor()
	name := enum.Values().ByNumber(value.Number()).Name()
	return strings.ToLower(strings.TrimPrefix(string(name), prefixOf(enum)))
}

// prefixOf an enum's values: ON_DOWN_ of OnDown.
func prefixOf(enum protoreflect.EnumDescriptor) string {
	var prefix strings.Builder
	for at, letter := range string(enum.Name()) {
		if at > 0 && unicode.IsUpper(letter) {
			prefix.WriteByte('_')
		}
		prefix.WriteRune(unicode.ToUpper(letter))
	}
	return prefix.String() + "_"
}
