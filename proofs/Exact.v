(* Exact.v - the integer sums of decode: no order shows, no accumulator is too narrow.

   What a decoded token is computed from is integer arithmetic wherever a sum is long (the decode
   linears, the scores, P.V, the sum of the softmax). Three things make that exact: integer
   addition has no order; each accumulator holds whatever its terms can add up to; and the planes
   and codes into which numbers are cut add up to the numbers themselves.

   An accumulator is a C type: signed with 31 or 63 bits of magnitude, or unsigned with 32 or 64.
   Its additions wrap. A sum is what a schedule exports: its accumulator, how many terms it has at
   most, and the largest magnitude of a term. *)

Require Import ZArith List Bool Lia Permutation.
Import ListNotations.
Open Scope Z_scope.

Definition total (terms : list Z) : Z := fold_right Z.add 0 terms.

Lemma total_app : forall a b, total (a ++ b) = total a + total b.
Proof. induction a as [| x a same]; intro b; simpl; [reflexivity | rewrite same; lia]. Qed.

Lemma total_permutation : forall a b, Permutation a b -> total a = total b.
Proof. induction 1; simpl; lia. Qed.

Lemma total_concat : forall pieces, total (concat pieces) = total (map total pieces).
Proof.
  induction pieces as [| piece rest same]; simpl; [reflexivity |]. rewrite total_app, same.
  reflexivity.
Qed.

(* Law order_free: two executions that cover the same terms, cut into pieces and ordered in any
   two ways, give the same sum: no partition, warp count, stage or number of multiprocessors can
   show in it.
   Mirrors: gemm_m16_partition, nat_order. *)
Theorem order_free : forall pieces pieces', Permutation (concat pieces) (concat pieces') ->
  total (map total pieces) = total (map total pieces').
Proof. intros. rewrite <- !total_concat. apply total_permutation. assumption. Qed.

Example order_free_used : total (map total [[1; 2]; [3]]) = total (map total [[3; 1]; [2]]).
Proof.
  apply order_free. cbn. apply Permutation_sym.
  apply Permutation_trans with [1; 3; 2]; [apply perm_swap | apply perm_skip, perm_swap].
Qed.

(* Float addition has an order: with three digits and rounding, it is not associative. *)
Example order_needed :
  let rounded x := if Z.abs x <? 1000 then x else (x / 10) * 10 in
  let add x y := rounded (x + y) in
  add (add 999 6) 6 <> add 999 (add 6 6).
Proof. discriminate. Qed.

(* ---- accumulators *)

Inductive accumulator := Signed (bits : Z) | Unsigned (bits : Z).

Definition wrap (type : accumulator) (x : Z) : Z :=
  match type with
  | Signed bits => (x + 2 ^ bits) mod 2 ^ (bits + 1) - 2 ^ bits
  | Unsigned bits => x mod 2 ^ bits
  end.

Definition term_of (type : accumulator) (most x : Z) : Prop :=
  match type with
  | Signed _ => - most <= x <= most
  | Unsigned _ => 0 <= x <= most
  end.

Definition bits_of (type : accumulator) : Z :=
  match type with Signed bits | Unsigned bits => bits end.

(* The largest sum fits. *)
Definition sum_fits (type : accumulator) (terms most : Z) : bool :=
  (0 <=? bits_of type) && (0 <=? most) && (0 <=? terms) && (terms * most <? 2 ^ bits_of type).

Lemma wrap_exact : forall type x, 0 <= bits_of type ->
  term_of type (2 ^ bits_of type - 1) x -> wrap type x = x.
Proof.
  intros [bits | bits] x known range; simpl in *.
  - rewrite Z.pow_add_r by lia. rewrite Z.mod_small; lia.
  - apply Z.mod_small. lia.
Qed.

Lemma total_range : forall type most terms, 0 <= most -> Forall (term_of type most) terms ->
  term_of type (Z.of_nat (length terms) * most) (total terms).
Proof.
  intros type most terms known. induction 1 as [| x terms first rest range]; simpl length.
  - destruct type; simpl; lia.
  - rewrite Nat2Z.inj_succ. destruct type; simpl in *; nia.
Qed.

(* Law sum_exact: an accumulator that holds the largest sum of its terms gives the exact sum of any
   of them, in any order and from any cut into partial sums, though every addition wraps.
   Mirrors: attn_fast, pattn8i_int. *)
Theorem sum_exact : forall type terms most, sum_fits type terms most = true ->
  forall list, Z.of_nat (length list) <= terms -> Forall (term_of type most) list ->
  fold_left (fun sum term => wrap type (sum + term)) list 0 = total list /\
  wrap type (total list) = total list.
Proof.
  intros type terms most decided. unfold sum_fits in decided.
  rewrite !andb_true_iff, !Z.leb_le, Z.ltb_lt in decided.
  destruct decided as [[[bits some] few] holds].
  assert (range : forall list, Z.of_nat (length list) <= terms -> Forall (term_of type most) list ->
    term_of type (2 ^ bits_of type - 1) (total list)).
  { intros list short all. pose proof (total_range type most list some all) as found.
    assert (Z.of_nat (length list) * most <= terms * most) by nia.
    destruct type; simpl in *; lia. }
  intros list short all. split; [| apply wrap_exact; auto].
  revert short all. pattern list. apply rev_ind; [reflexivity |].
  intros term init same short all.
  rewrite fold_left_app. simpl. rewrite app_length in short. simpl in short.
  rewrite same; [| lia | apply Forall_app in all; tauto].
  replace (total init + term) with (total (init ++ [term])) by (rewrite total_app; simpl; lia).
  apply wrap_exact; [exact bits |]. apply range; [rewrite app_length; simpl; lia | exact all].
Qed.

(* One bit less and the sum of block sums of one byte plane is wrong: the bound is needed. *)
Example sum_too_narrow : let list := repeat (1020 * 128) 128 in
  sum_fits (Signed 23) 128 (1020 * 128) = false /\
  fold_left (fun sum term => wrap (Signed 23) (sum + term)) list 0 <> total list.
Proof. split; [reflexivity | vm_compute; discriminate]. Qed.

(* Law atomics: 64-bit sums that meet in memory by atomic additions, which wrap, arrive in any order
   at the exact signed sum where that fits 63 bits.
   Mirrors: gemm_m16_partition, m16_discard. *)
Theorem atomics : forall partials partials', Permutation partials partials' ->
  - 2 ^ 63 <= total partials < 2 ^ 63 ->
  wrap (Signed 63)
    (fold_left (fun memory part => (memory + part) mod 2 ^ 64) partials' 0) = total partials.
Proof.
  intros partials partials' same range. rewrite (total_permutation _ _ same) in *.
  assert (sum : forall list start, fold_left (fun memory part => (memory + part) mod 2 ^ 64) list
    (start mod 2 ^ 64) = (start + total list) mod 2 ^ 64).
  { induction list as [| x list next]; intro start; simpl; [f_equal; lia |].
    rewrite Zplus_mod_idemp_l, next. f_equal. lia. }
  change 0 with (0 mod 2 ^ 64) at 1. rewrite sum. simpl (0 + _).
  unfold wrap. change (63 + 1) with 64.
  rewrite Zplus_mod_idemp_l, Z.mod_small by lia. lia.
Qed.

Example atomics_used := atomics [-5; 7] [7; -5] (perm_swap _ _ _) ltac:(cbn; lia).

(* ---- planes: an activation is i = 256 h + l, both signed bytes *)

Definition byte (x : Z) : Prop := -128 <= x <= 127.
Definition low_plane (i : Z) : Z := (i + 128) mod 256 - 128.
Definition high_plane (i : Z) : Z := (i + 128) / 256.

(* Law planes: a number of magnitude up to 32,639, and a codebook's value below 2^15, is 256 times a
   signed byte plus a signed byte.
   Mirrors: attn_fast. *)
Theorem planes : forall i, - 32640 <= i <= 32639 ->
  i = 256 * high_plane i + low_plane i /\ byte (high_plane i) /\ byte (low_plane i).
Proof.
  intros i range. unfold high_plane, low_plane, byte.
  pose proof (Z.div_mod (i + 128) 256 ltac:(lia)).
  pose proof (Z.mod_pos_bound (i + 128) 256 ltac:(lia)).
  assert ((i + 128) / 256 <= 127) by (apply Z.lt_succ_r, Z.div_lt_upper_bound; lia).
  assert (-128 <= (i + 128) / 256) by (apply Z.div_le_lower_bound; lia).
  lia.
Qed.
Example planes_used := planes (-32639) ltac:(lia).
Example planes_end : high_plane 32640 = 128.
Proof. reflexivity. Qed.

(* A block of weights against activations, as a list of (activation, weight) pairs. *)
Definition products (f : Z -> Z -> Z) (block : list (Z * Z)) : Z :=
  total (map (fun term => f (fst term) (snd term)) block).

Lemma products_linear : forall f g a b block,
  products (fun i w => a * f i w + b * g i w) block = a * products f block + b * products g block.
Proof.
  intros f g a b block. unfold products. induction block as [| term block same]; simpl; lia.
Qed.

Lemma products_same : forall f g block, Forall (fun term => f (fst term) (snd term) =
  g (fst term) (snd term)) block -> products f block = products g block.
Proof. intros f g block. unfold products. induction 1; simpl; lia. Qed.

(* Law fold_bytes: for mul1, what a block's two int32 sums (of h*S and l*S) are folded to is the sum
   of i*S itself.
   Mirrors: gemm_m16_partition. *)
Theorem fold_bytes : forall block, Forall (fun term => -32640 <= fst term <= 32639) block ->
  256 * products (fun i s => high_plane i * s) block + products (fun i s => low_plane i * s) block
  = products Z.mul block.
Proof.
  intros block all.
  rewrite (products_same Z.mul (fun i s => 256 * (high_plane i * s) + 1 * (low_plane i * s))).
  - rewrite products_linear. lia.
  - apply Forall_forall. intros [i s] inside. cbn [fst snd].
    rewrite Forall_forall in all. destruct (planes i (all _ inside)) as [same _].
    set (h := high_plane i) in *. set (l := low_plane i) in *. clearbody h l. subst i. ring.
Qed.
Example fold_bytes_used := fold_bytes [(32639, 1020)] ltac:(repeat constructor; cbn; lia).

(* Law fold_pairs: the pairs emitter cuts S into 256 sh + sl too; its three int32 sums fold to the
   same number, so emitters may be mixed tile by tile.
   Mirrors: m16_diet, m16_diet2. *)
Theorem fold_pairs : forall block, Forall (fun term => -32640 <= fst term <= 32639) block ->
  let sh s := s / 256 in let sl s := s mod 256 in
  let top := products (fun i s => high_plane i * sh s) block in
  let high := products (fun i s => 1 * (high_plane i * sl s) + 1 * (low_plane i * sh s)) block in
  let low := products (fun i s => low_plane i * sl s) block in
  256 * (high + top * 256) + low = products Z.mul block.
Proof.
  intros block all sh sl top high low.
  rewrite (products_same Z.mul (fun i s => 256 * (256 * (high_plane i * sh s)
    + 1 * (1 * (high_plane i * sl s) + 1 * (low_plane i * sh s))) + 1 * (low_plane i * sl s))).
  - rewrite !products_linear. fold top high low. unfold top, high, low.
    rewrite products_linear. lia.
  - apply Forall_forall. intros [i s] inside. cbn [fst snd]. unfold sh, sl.
    rewrite Forall_forall in all. destruct (planes i (all _ inside)) as [same _].
    pose proof (Z.div_mod s 256 ltac:(lia)) as parts.
    set (h := high_plane i) in *. set (l := low_plane i) in *.
    set (top_byte := s / 256) in *. set (rest := s mod 256) in *.
    clearbody h l top_byte rest. subst i s. ring.
Qed.
Example fold_pairs_used := fold_pairs [(32639, 1020)] ltac:(repeat constructor; cbn; lia).

(* Law fold_values: for the 3inst and mcg codebooks, the three int32 sums over the byte planes of
   activations and values fold to the sum of i*v.
   Mirrors: gemm_m16_partition. *)
Theorem fold_values : forall block,
  Forall (fun term => -32640 <= fst term <= 32639 /\ -32640 <= snd term <= 32639) block ->
  65536 * products (fun i v => high_plane i * high_plane v) block
  + 256 * products (fun i v => 1 * (high_plane i * low_plane v) + 1 * (low_plane i * high_plane v))
            block
  + products (fun i v => low_plane i * low_plane v) block = products Z.mul block.
Proof.
  intros block all.
  rewrite (products_same Z.mul (fun i v => 65536 * (high_plane i * high_plane v)
    + 1 * (256 * (1 * (high_plane i * low_plane v) + 1 * (low_plane i * high_plane v))
           + 1 * (low_plane i * low_plane v)))).
  - rewrite !products_linear. lia.
  - apply Forall_forall. intros [i v] inside. cbn [fst snd].
    rewrite Forall_forall in all. destruct (all _ inside) as [range_i range_v]. cbn [fst snd] in *.
    destruct (planes i range_i) as [same_i _]. destruct (planes v range_v) as [same_v _].
    set (h := high_plane i) in *. set (l := low_plane i) in *.
    set (vh := high_plane v) in *. set (vl := low_plane v) in *.
    clearbody h l vh vl. subst i v. ring.
Qed.
Example fold_values_used := fold_values [(32639, -32639)] ltac:(repeat constructor; cbn; lia).

(* ---- the codebooks (spec of EXL3: a 16-bit state gives a weight) *)

(* mul1: S is the sum of the four bytes of state * 0x83DCD12D; the weight is
   w = (887 S - 452608) * 2^-17. *)
Definition byte_sum (x : Z) : Z :=
  x mod 256 + x / 256 mod 256 + x / 65536 mod 256 + x / 16777216 mod 256.
Definition mul1_sum (state : Z) : Z := byte_sum ((state * 0x83DCD12D) mod 2 ^ 32).

Lemma byte_sum_range : forall x, 0 <= byte_sum x <= 1020.
Proof.
  intro x. unfold byte_sum.
  pose proof (Z.mod_pos_bound x 256 ltac:(lia)).
  pose proof (Z.mod_pos_bound (x / 256) 256 ltac:(lia)).
  pose proof (Z.mod_pos_bound (x / 65536) 256 ltac:(lia)).
  pose proof (Z.mod_pos_bound (x / 16777216) 256 ltac:(lia)). lia.
Qed.

(* Law affine_mul1: the sum of i*w over any block is affine in two integer sums, Y = sum of i*S and
   Q = sum of i, and with U = Y - 510 Q the two parts that are converted to floats do not cancel:
   2^17 sum(i*w) = 887 U - 238 Q.
   Mirrors: gemm_m16_partition. No hypotheses. *)
Theorem affine_mul1 : forall block,
  products (fun i s => i * (887 * s - 452608)) block =
  887 * (products Z.mul block - 510 * products (fun i _ => i) block)
  - 238 * products (fun i _ => i) block.
Proof.
  intro block.
  rewrite (products_same _ (fun i s => 887 * (i * s) + -452608 * i)).
  - rewrite (products_linear (fun i s => i * s) (fun i _ => i)).
    change (products (fun i s => i * s) block) with (products Z.mul block). lia.
  - apply Forall_forall. intros [i s] _. cbn [fst snd]. ring.
Qed.

(* U is a sum of i * (S - 510), whose factor is half as large as S. *)
Lemma centred : forall block,
  products Z.mul block - 510 * products (fun i _ => i) block =
  products (fun i s => i * (s - 510)) block.
Proof.
  intro block.
  rewrite (products_same (fun i s => i * (s - 510)) (fun i s => 1 * (i * s) + -510 * i)).
  - rewrite (products_linear (fun i s => i * s) (fun i _ => i)).
    change (products (fun i s => i * s) block) with (products Z.mul block). lia.
  - apply Forall_forall. intros [i s] _. cbn [fst snd]. ring.
Qed.

(* 3inst and mcg: two halves of a product, with some bits forced, are binary16 numbers; their sum in
   binary16 is the value. `half` is a binary16 number times 2^24, an integer; `half_rounded` rounds
   such an integer to one that binary16 has, ties to even. *)
Definition half (bits : Z) : Z :=
  let exponent := Z.land (Z.shiftr bits 10) 31 in let fraction := Z.land bits 1023 in
  let size := if exponent =? 0 then fraction else Z.shiftl (1024 + fraction) (exponent - 1) in
  if Z.testbit bits 15 then - size else size.
Definition half_rounded (x : Z) : Z :=
  let size := Z.abs x in
  let shift := Z.max 0 (Z.log2 size - 10) in
  let unit := Z.shiftl 1 shift in
  let down := Z.shiftr size shift in
  let rest := size - Z.shiftl down shift in
  let up := if 2 * rest <? unit then 0 else if unit <? 2 * rest then 1 else Z.land down 1 in
  Z.sgn x * Z.shiftl (down + up) shift.
Definition codebook_value (product : Z) : Z :=
  let x := Z.lxor (Z.land product 0x8fff8fff) 0x3b603b60 in
  half_rounded (half (Z.land x 65535) + half (Z.shiftr x 16)).
Definition product_3inst (state : Z) : Z := Z.land (state * 89226354 + 64248484) 0xffffffff.
Definition product_mcg (state : Z) : Z := Z.land (state * 0xCBAC1FED) 0xffffffff.

(* A property of all 16-bit states, decided one by one. *)
Fixpoint all_below (check : Z -> bool) (bits : nat) (first : Z) : bool :=
  match bits with
  | O => check first
  | S bits => all_below check bits first && all_below check bits (first + 2 ^ Z.of_nat bits)
  end.

Lemma all_below_sound : forall check bits first, all_below check bits first = true ->
  forall x, first <= x < first + 2 ^ Z.of_nat bits -> check x = true.
Proof.
  intros check. induction bits as [| bits both]; intros first decided x range.
  - simpl in *. replace x with first by lia. exact decided.
  - cbn [all_below] in decided. apply andb_true_iff in decided. destruct decided as [low high].
    rewrite Nat2Z.inj_succ, Z.pow_succ_r in range by lia.
    destruct (Z.lt_ge_cases x (first + 2 ^ Z.of_nat bits)).
    + apply (both first); [exact low | lia].
    + apply (both (first + 2 ^ Z.of_nat bits)); [exact high | lia].
Qed.

(* The value times 2^13 is an integer v that both planes hold: half's unit is 2^-24. *)
Definition value_fits (product : Z -> Z) (state : Z) : bool :=
  let value := codebook_value (product state) in
  (Z.land value 0x7ff =? 0) && (Z.abs value <? 66846720). (* 32640 * 2^11 *)

Lemma values_fit : all_below (value_fits product_3inst) 16 0 = true /\
  all_below (value_fits product_mcg) 16 0 = true.
Proof. split; vm_cast_no_check (eq_refl true). Qed.

(* Law codebooks: for all 65,536 states the values of the 3inst and mcg codebooks are v * 2^-13 with
   an integer |v| < 2^15 that is 256 vh + vl, two signed bytes; those of mul1 are affine in a sum of
   four bytes, which is at most 1,020.
   Mirrors: m16_diet. *)
Theorem codebooks : forall state, 0 <= state < 65536 ->
  (forall product, product = product_3inst \/ product = product_mcg ->
   exists v, codebook_value (product state) = 2 ^ 11 * v /\ -32640 < v < 32640 /\
     v = 256 * high_plane v + low_plane v /\ byte (high_plane v) /\ byte (low_plane v)) /\
  0 <= mul1_sum state <= 1020.
Proof.
  intros state range. split; [| apply byte_sum_range].
  intros product which.
  assert (decided : value_fits product state = true).
  { destruct values_fit as [of_3inst of_mcg].
    destruct which; subst product;
      [apply (all_below_sound _ _ _ of_3inst) | apply (all_below_sound _ _ _ of_mcg)];
      change (2 ^ Z.of_nat 16) with 65536; lia. }
  unfold value_fits in decided. set (value := codebook_value (product state)) in *.
  rewrite andb_true_iff, Z.eqb_eq, Z.ltb_lt in decided. destruct decided as [whole small].
  change 0x7ff with (Z.ones 11) in whole. rewrite Z.land_ones in whole by lia.
  exists (value / 2 ^ 11).
  assert (parts := Z.div_mod value (2 ^ 11) ltac:(lia)).
  change (2 ^ 11) with 2048 in *.
  split; [lia |]. split; [lia |]. apply planes. lia.
Qed.
Example codebooks_used := codebooks 65535 ltac:(lia).

(* ---- codes of the cache: c of `bits` bits stands for the odd number 2c - (2^bits - 1) *)

(* The byte that the matrix unit sees, and what is made of its products with 8 bits. *)
Definition code_shift (bits : Z) : Z := if bits =? 8 then 0 else 7 - bits.
Definition code_byte (bits c : Z) : Z :=
  if bits =? 8 then c - 128 else (2 * c - (2 ^ bits - 1)) * 2 ^ code_shift bits.

(* Law kv_codes: for every width of the cache, 2 to 8 bits, the byte of a code is a signed byte that
   stands for the odd number 2c - (2^bits - 1), exactly: times a power of two, or, with 8 bits, as
   twice the byte and one.
   Mirrors: attn_fast. *)
Theorem kv_codes : forall bits c, 2 <= bits <= 8 -> 0 <= c < 2 ^ bits ->
  byte (code_byte bits c) /\
  (if bits =? 8 then 2 * code_byte bits c + 1 = 2 * c - (2 ^ bits - 1)
   else code_byte bits c = (2 * c - (2 ^ bits - 1)) * 2 ^ code_shift bits).
Proof.
  intros bits c range code.
  assert (cases : bits = 2 \/ bits = 3 \/ bits = 4 \/ bits = 5 \/ bits = 6 \/ bits = 7 \/ bits = 8)
    by lia.
  unfold byte, code_byte, code_shift.
  destruct cases as [-> | [-> | [-> | [-> | [-> | [-> | ->]]]]]];
    repeat match goal with
    | |- context [?a =? 8] => let v := eval compute in (a =? 8) in change (a =? 8) with v
    | |- context [7 - ?a] => let v := eval compute in (7 - a) in change (7 - a) with v
    end; cbv iota;
    repeat match goal with
    | |- context [2 ^ ?a] => let v := eval compute in (2 ^ a) in change (2 ^ a) with v
    | known : context [2 ^ ?a] |- _ =>
        let v := eval compute in (2 ^ a) in change (2 ^ a) with v in known
    end; lia.
Qed.
Example kv_codes_used := kv_codes 3 7 ltac:(lia) ltac:(cbn; lia).
