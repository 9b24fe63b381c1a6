"""Country names as keys: the synthetic stream of dynamic key grouping (DKG)."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from dalton.envs.draws import KEY_STREAM, stream_key, unit
from dalton.envs.errors import check_choice, check_real
from dalton.envs.hashing import key_ids
from dalton.envs.kernel import kernel
from dalton.envs.workloads import Common, Keys, Workload, register

# The 193 members and 2 observers of the United Nations.
COUNTRIES = tuple(
    """Afghanistan,Albania,Algeria,Andorra,Angola,Antigua and Barbuda,Argentina,Armenia,Australia,Austria,
Azerbaijan,Bahamas,Bahrain,Bangladesh,Barbados,Belarus,Belgium,Belize,Benin,Bhutan,Bolivia,
Bosnia and Herzegovina,Botswana,Brazil,Brunei,Bulgaria,Burkina Faso,Burundi,Cabo Verde,Cambodia,Cameroon,
Canada,Central African Republic,Chad,Chile,China,Colombia,Comoros,Congo,Costa Rica,Côte d'Ivoire,Croatia,
Cuba,Cyprus,Czechia,Democratic Republic of the Congo,Denmark,Djibouti,Dominica,Dominican Republic,Ecuador,
Egypt,El Salvador,Equatorial Guinea,Eritrea,Estonia,Eswatini,Ethiopia,Fiji,Finland,France,Gabon,Gambia,
Georgia,Germany,Ghana,Greece,Grenada,Guatemala,Guinea,Guinea-Bissau,Guyana,Haiti,Holy See,Honduras,Hungary,
Iceland,India,Indonesia,Iran,Iraq,Ireland,Israel,Italy,Jamaica,Japan,Jordan,Kazakhstan,Kenya,Kiribati,
Kuwait,Kyrgyzstan,Laos,Latvia,Lebanon,Lesotho,Liberia,Libya,Liechtenstein,Lithuania,Luxembourg,Madagascar,
Malawi,Malaysia,Maldives,Mali,Malta,Marshall Islands,Mauritania,Mauritius,Mexico,Micronesia,Moldova,Monaco,
Mongolia,Montenegro,Morocco,Mozambique,Myanmar,Namibia,Nauru,Nepal,Netherlands,New Zealand,Nicaragua,Niger,
Nigeria,North Korea,North Macedonia,Norway,Oman,Pakistan,Palau,Palestine,Panama,Papua New Guinea,Paraguay,
Peru,Philippines,Poland,Portugal,Qatar,Romania,Russia,Rwanda,Saint Kitts and Nevis,Saint Lucia,
Saint Vincent and the Grenadines,Samoa,San Marino,Sao Tome and Principe,Saudi Arabia,Senegal,Serbia,
Seychelles,Sierra Leone,Singapore,Slovakia,Slovenia,Solomon Islands,Somalia,South Africa,South Korea,
South Sudan,Spain,Sri Lanka,Sudan,Suriname,Sweden,Switzerland,Syria,Tajikistan,Tanzania,Thailand,
Timor-Leste,Togo,Tonga,Trinidad and Tobago,Tunisia,Turkey,Turkmenistan,Tuvalu,Uganda,Ukraine,
United Arab Emirates,United Kingdom,United States,Uruguay,Uzbekistan,Vanuatu,Venezuela,Vietnam,Yemen,
Zambia,Zimbabwe""".replace("\n", "").split(",")
)
SKEWED = "Turkey"


@kernel
def _draw_country(key: Any, lo: Any, share: Any, until: Any, hot: Any, ids: Any, out: Any) -> None:
    n = len(ids)
    for i in range(len(out)):
        p = share if lo + i < until else 0.0
        x = unit(key, lo + i)
        out[i] = hot if x < p else ids[min(np.int64((x - p) / (1.0 - p) * n), n - 1)]


@register("country")
class Country(Workload):
    """Country names, one of them skewed: DKG's generator.

    With probability skew / 100 the key is the skewed country, otherwise uniform over all 195 names (the
    skewed one included), so that its share is skew / 100 + (1 - skew / 100) / 195. Ids are `key_ids`.

    Args:
        skew: Per cent of the tuples, 0 to 100.
        half: Skew only tuples t < n_tuples // 2; the rest are uniform.
        **common: See `Workload`.
    """

    n_keys = len(COUNTRIES)

    def __init__(self, *, skew: float = 50.0, half: bool = False, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.skew = check_real("skew", skew, low=0, high=100)
        check_choice("half", str(half).lower(), ("true", "false"))
        self.half = str(half).lower() == "true"

    def _keys(self, lo: int, hi: int) -> Keys:
        out = np.empty(hi - lo, np.int64)
        ids = key_ids(COUNTRIES)
        until = self.n_tuples // 2 if self.half else self.n_tuples
        hot = ids[COUNTRIES.index(SKEWED)]
        _draw_country(stream_key(self.seed, KEY_STREAM), lo, self.skew / 100, until, hot, ids, out)
        return out
